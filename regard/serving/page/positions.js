// Section "positions": position encodings, their similarities, and the angles of rotary encodings.

import { initialState, integer, toggle } from "./address.js";
import { request } from "./api.js";
import { pageColours, prepare } from "./canvas.js";
import { create, createField, createSlider, debounce } from "./dom.js";
import { createPicture } from "./map_figure.js";
import { arrayToMap } from "./translations.js";

const parameters = { length: integer(64, 8, 256), position: integer(8, 0, 255), compare: toggle() };
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
  container.append(createComparison(page, signal));
  await draw();
}

/** Create a part that shows one encoding of each kind when it is opened. */
function createComparison(page, signal) {
  const { strings } = page;
  const cards = create("div");
  const details = create("details", { class: "card compared" },
    create("summary", { text: strings.compareEncodings }),
    create("p", { class: "hint", text: strings.compareEncodingsHint }), cards);
  const load = async () => {
    if (cards.children.length) return;
    const { content, arrays } = await request("inspect/positions", { model: page.model.name, compare: true }, signal);
    if (signal.aborted) return;
    cards.replaceChildren(...content.encodings.map((encoding, i) =>
      createCard(encoding, arrays, i, page, strings.encodingFacts[encoding.name])));
  };
  details.addEventListener("toggle", () => {
    state.compare = details.open;
    page.saveView({ replace: true });
    if (details.open) load().catch((error) => page.showError(error));
  });
  details.open = state.compare;
  return details;
}

function createCard(encoding, arrays, i, page, fact) {
  const { strings } = page;
  const kind = strings.encodings[encoding.kind] ?? encoding.kind;
  const title = fact ? strings.encodingNames[encoding.name] ?? kind : `${encoding.name} · ${kind}`; // compared ones have no module
  const pictures = create("div", { class: "pictures" },
    createPicture(strings.encodingTitle, arrayToMap(arrays[`encoding${i}`]), 620, [strings.positionAxis, strings.featureAxis]),
    createPicture(strings.similarityTitle, arrayToMap(arrays[`similarity${i}`]), 420, [strings.positionAxis, strings.positionAxis]));
  const card = create("section", { class: "card encoding" }, create("h2", { text: title }));
  if (fact) card.append(create("p", { class: "hint", text: fact }));
  card.append(pictures);
  const angles = arrays[`angles${i}`];
  if (angles) card.append(createDials(angles, page));
  return card;
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
