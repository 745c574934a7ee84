// A vector as a strip of cells: blue above zero, orange below.

import { prepare } from "./canvas.js";
import { colourOf, makeScale } from "./colours.js";
import { isDark } from "./theme.js";

const HEIGHT = 16;
const WIDEST = 260; // and no more than a third of a phone

/** A canvas with a cell a number; `most` is what the strongest colour stands for. */
export function drawStrip(values, most, cell = fittingCell(values.length)) {
  const canvas = document.createElement("canvas");
  canvas.className = "vector";
  canvas.title = Array.from(values.slice(0, 16), (value) => value.toFixed(2)).join("  ") + (values.length > 16 ? " …" : "");
  const perRow = Math.max(1, Math.min(values.length, Math.floor(640 / cell)));
  const rows = Math.ceil(values.length / perRow);
  const context = prepare(canvas, perRow * cell, rows * (HEIGHT + 2) - 2);
  const scale = makeScale(isDark(), true);
  values.forEach((value, i) => {
    context.fillStyle = colourOf(scale, (value / most + 1) / 2);
    context.fillRect((i % perRow) * cell, Math.floor(i / perRow) * (HEIGHT + 2), cell - (cell > 4 ? 1 : 0), HEIGHT);
  });
  return canvas;
}

function fittingCell(count) {
  return Math.max(3, Math.min(14, Math.floor(Math.min(WIDEST, innerWidth / 3) / count)));
}
