// Section "positions": position encodings, their similarities, and the angles of rotary encodings.

import { initialState, integer } from "./address.js";
import { request } from "./api.js";
import { pageColours, prepare } from "./canvas.js";
import { makeScale } from "./colours.js";
import { drawLegend } from "./description.js";
import { create, createField, createSlider, debounce } from "./dom.js";
import { paint } from "./matrix.js";
import { mapRows, setData } from "./panel_data.js";
import { isDark } from "./theme.js";
import { arrayToMap } from "./translations.js";

const parameters = { length: integer(64, 8, 256), position: integer(8, 0, 255) };
const state = initialState(parameters);

export const section = { id: "positions", requires: ["positions"], show, parameters, state };

const DIAL_SIZE = 64, DIAL_LABEL_HEIGHT = 16, MAX_DIALS = 12;

async function show(container, page, signal) {
  const { strings } = page;
  const controls = create("section", { class: "card" }, create("h2", { text: strings.positionsTitle }));
  const cards = create("div");
  container.append(controls, cards);
  const draw = async () => {
    const { content, arrays } = await request("inspect/positions", { model: page.model.name, length: state.length }, signal);
    if (signal.aborted) return;
    cards.replaceChildren(...content.encodings.map((encoding, i) => createCard(encoding, arrays, i, page)));
    if (!content.encodings.length) cards.append(create("p", { class: "card", text: strings.noPositions }));
  };
  const drawSoon = debounce(() => draw().catch((error) => page.showError(error)), 150);
  const slider = createSlider({ min: 8, max: 256, step: 8, value: state.length }, (length) => {
    state.length = length;
    page.saveView({ replace: true });
    drawSoon();
  });
  controls.append(createField(strings.positionCount, slider));
  await draw();
}

function createCard(encoding, arrays, i, page) {
  const { strings } = page;
  const title = `${encoding.name} · ${strings.encodings[encoding.kind] ?? encoding.kind}`;
  const pictures = create("div", { class: "pictures" },
    createPicture(strings.encodingTitle, arrayToMap(arrays[`encoding${i}`]), 620),
    createPicture(strings.similarityTitle, arrayToMap(arrays[`similarity${i}`]), 420));
  const card = create("section", { class: "card" }, create("h2", { text: title }), pictures);
  const angles = arrays[`angles${i}`];
  if (angles) card.append(createDials(angles, page));
  return card;
}

/** Create a figure of a map without labels; the value under the pointer is shown below it. */
function createPicture(title, map, maxWidth) {
  const canvas = create("canvas");
  setData(canvas, () => mapRows(map));
  const readout = create("span", { class: "readout" });
  const width = Math.min(maxWidth, innerWidth - 60);
  const height = Math.min(420, Math.max(120, (width * map.rows) / map.columns));
  const context = prepare(canvas, width, height);
  context.imageSmoothingEnabled = false;
  const scale = makeScale(isDark(), map.signed);
  context.drawImage(paint(map, scale), 0, 0, width, height);
  const index = (offset, size, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
  canvas.addEventListener("pointermove", (event) => {
    const row = index(event.offsetY, height, map.rows);
    const column = index(event.offsetX, width, map.columns);
    readout.textContent = `${row}, ${column}: ${map.values[row * map.columns + column].toFixed(3)}`;
  });
  const [colours, low, high] = [create("canvas"), create("span"), create("span")];
  drawLegend(colours, low, high, map, scale);
  const legend = create("span", { class: "legend" }, low, colours, high);
  const footer = create("div", { class: "figure-footer" }, readout, legend);
  return create("figure", { class: "plain" }, create("h3", { text: title }), canvas, footer);
}

/** Create a dial for each pair of features that shows its rotation angle at a position. */
function createDials({ shape: [positions, pairs], values }, { strings, saveView }) {
  const canvas = create("canvas");
  const count = Math.min(MAX_DIALS, pairs);
  const shownPairs = Array.from({ length: count }, (_, i) => Math.floor((i * pairs) / count));
  const draw = (position) => {
    state.position = position;
    const perRow = Math.max(1, Math.min(count, Math.floor((innerWidth - 60) / DIAL_SIZE)));
    const rowHeight = DIAL_SIZE + DIAL_LABEL_HEIGHT;
    const context = prepare(canvas, perRow * DIAL_SIZE, Math.ceil(count / perRow) * rowHeight);
    shownPairs.forEach((pair, i) => {
      const x = (i % perRow) * DIAL_SIZE + DIAL_SIZE / 2;
      const y = Math.floor(i / perRow) * rowHeight + DIAL_SIZE / 2;
      drawDial(context, x, y, values[position * pairs + pair]);
    });
  };
  const initial = Math.min(state.position, positions - 1);
  const slider = createSlider({ min: 0, max: positions - 1, step: 1, value: initial }, (position) => {
    draw(position);
    saveView({ replace: true });
  });
  draw(initial);
  return create("div", { class: "dials" },
    create("h3", { text: strings.anglesTitle }),
    createField(strings.position, slider),
    canvas);
}

function drawDial(context, x, y, angle) {
  const colours = pageColours();
  const radius = DIAL_SIZE / 2 - 6;
  context.strokeStyle = colours.faint;
  context.lineWidth = 1;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
  context.strokeStyle = colours.accent;
  context.lineWidth = 2.5;
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x + (radius - 2) * Math.cos(angle), y - (radius - 2) * Math.sin(angle));
  context.stroke();
  context.fillStyle = colours.faint;
  context.font = "11px system-ui";
  context.textAlign = "center";
  context.fillText(`${((angle * 180) / Math.PI).toFixed(0)}°`, x, y + DIAL_SIZE / 2 + 8);
}
