// A vector drawn as a strip of coloured cells: blue for positive values, orange for negative ones.

import { prepare } from "./canvas.js";
import { colourOf, makeScale } from "./colours.js";
import { formatNumber } from "./description.js";
import { setData } from "./panel_data.js";
import { isDark } from "./theme.js";

const CELL_HEIGHT = 16;
const MAX_WIDTH = 260;
const MAX_ROW_WIDTH = 640;

/** Draw a vector on a new canvas; `maximum` is the absolute value with the strongest colour. */
export function drawVector(values, maximum, cellWidth = fittingCellWidth(values.length)) {
  const canvas = document.createElement("canvas");
  canvas.className = "vector";
  const firstValues = Array.from(values.slice(0, 16), (value) => formatNumber(value, 2)).join("  ");
  canvas.title = firstValues + (values.length > 16 ? " …" : "");
  const perRow = Math.max(1, Math.min(values.length, Math.floor(MAX_ROW_WIDTH / cellWidth)));
  const rows = Math.ceil(values.length / perRow);
  const context = prepare(canvas, perRow * cellWidth, rows * (CELL_HEIGHT + 2) - 2);
  const scale = makeScale(isDark(), true);
  const gap = cellWidth > 4 ? 1 : 0;
  values.forEach((value, i) => {
    context.fillStyle = colourOf(scale, (value / maximum + 1) / 2);
    context.fillRect((i % perRow) * cellWidth, Math.floor(i / perRow) * (CELL_HEIGHT + 2), cellWidth - gap, CELL_HEIGHT);
  });
  return setData(canvas, () => [Array.from(values)]);
}

/** A strip is at most as wide as a third of the window, so that tables fit on a phone. */
function fittingCellWidth(count) {
  return Math.max(3, Math.min(14, Math.floor(Math.min(MAX_WIDTH, innerWidth / 3) / count)));
}
