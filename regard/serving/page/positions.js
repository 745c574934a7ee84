// Section: the encoding of positions as a picture, how alike positions are, and how rotary ones turn.

import { ask } from "./api.js";
import { prepare, pageColours } from "./canvas.js";
import { makeScale } from "./colours.js";
import { calmly, field, make, slider } from "./make.js";
import { paint } from "./matrix.js";
import { mapOf } from "./sentences.js";
import { drawLegend } from "./description.js";
import { isDark } from "./theme.js";

export const section = { id: "positions", needs: ["positions"], show };

const kept = { length: 64, place: 8 };
const DIAL = 64, DIALS = 12;

async function show(place, page, signal) {
  const { words } = page;
  const controls = make("section", { class: "card" }, make("h2", { text: words.positionsTitle }));
  const cards = make("div");
  place.append(controls, cards);
  const draw = async () => {
    const { about, arrays } = await ask("inspect/positions", { model: page.model.name, length: kept.length }, signal);
    if (signal.aborted) return;
    cards.replaceChildren(...about.encodings.map((encoding, i) => makeCard(encoding, arrays, i, words)));
    if (!about.encodings.length) cards.append(make("p", { class: "card", text: words.noPositions }));
  };
  const soon = calmly(() => draw().catch((error) => page.tell(error)), 150);
  controls.append(field(words.places, slider({ min: 8, max: 256, step: 8, value: kept.length }, (length) => ((kept.length = length), soon()))));
  await draw();
}

function makeCard(encoding, arrays, i, words) {
  const card = make("section", { class: "card" });
  card.append(make("h2", { text: `${encoding.name} · ${words.encodings[encoding.kind] ?? encoding.kind}` }));
  const pictures = make("div", { class: "pictures" });
  pictures.append(makePicture(words.encodingIs, mapOf(arrays[`encoding${i}`]), 620));
  pictures.append(makePicture(words.similarityIs, mapOf(arrays[`similarity${i}`]), 420));
  card.append(pictures);
  const angles = arrays[`angles${i}`];
  if (angles) card.append(makeDials(angles, words));
  return card;
}

/** A map without labels; what is pointed at is written below. */
function makePicture(title, map, most) {
  const canvas = make("canvas");
  const told = make("span", { class: "readout" });
  const width = Math.min(most, innerWidth - 60);
  const height = Math.min(420, Math.max(120, (width * map.rows) / map.columns));
  const context = prepare(canvas, width, height);
  context.imageSmoothingEnabled = false;
  const scale = makeScale(isDark(), map.signed);
  context.drawImage(paint(map, scale), 0, 0, width, height);
  canvas.addEventListener("pointermove", (event) => {
    const row = Math.min(map.rows - 1, Math.max(0, Math.floor((event.offsetY / height) * map.rows)));
    const column = Math.min(map.columns - 1, Math.max(0, Math.floor((event.offsetX / width) * map.columns)));
    told.textContent = `${row}, ${column}: ${map.values[row * map.columns + column].toFixed(3)}`;
  });
  const [colours, low, high] = [make("canvas"), make("span"), make("span")];
  drawLegend(colours, low, high, map, scale);
  const below = make("div", { class: "below" }, told, make("span", { class: "legend" }, low, colours, high));
  return make("figure", { class: "plain" }, make("h3", { text: title }), canvas, below);
}

/** A dial a pair of features: how far a place turns it. */
function makeDials({ shape: [places, pairs], values }, words) {
  const canvas = make("canvas");
  const shown = Array.from({ length: Math.min(DIALS, pairs) }, (_, i) => Math.floor((i * pairs) / Math.min(DIALS, pairs)));
  const draw = (place) => {
    const across = Math.max(1, Math.min(shown.length, Math.floor((innerWidth - 60) / DIAL)));
    const context = prepare(canvas, across * DIAL, Math.ceil(shown.length / across) * (DIAL + 16));
    const ink = pageColours();
    shown.forEach((pair, i) => {
      const angle = values[place * pairs + pair];
      const x = (i % across) * DIAL + DIAL / 2;
      const y = Math.floor(i / across) * (DIAL + 16) + DIAL / 2;
      context.strokeStyle = ink.faint;
      context.lineWidth = 1;
      context.beginPath();
      context.arc(x, y, DIAL / 2 - 6, 0, 2 * Math.PI);
      context.stroke();
      context.strokeStyle = ink.accent;
      context.lineWidth = 2.5;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + (DIAL / 2 - 8) * Math.cos(angle), y - (DIAL / 2 - 8) * Math.sin(angle));
      context.stroke();
      context.fillStyle = ink.faint;
      context.font = "11px system-ui";
      context.textAlign = "center";
      context.fillText(`${((angle * 180) / Math.PI).toFixed(0)}°`, x, y + DIAL / 2 + 8);
    });
  };
  const start = Math.min(kept.place, places - 1);
  const range = slider({ min: 0, max: places - 1, step: 1, value: start }, (place) => ((kept.place = place), draw(place)));
  draw(start);
  return make("div", { class: "dials" }, make("h3", { text: words.anglesAre }), field(words.place, range), canvas);
}
