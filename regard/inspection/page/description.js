// Text for the row, column or cell under the pointer, and the legend of a colour scale.

import { strongest } from "./maps.js";

const SHOWN = 4; // weights listed for a row or column

/** Return a number with a minus sign, and −∞ for masked values, which are null, NaN or infinite. */
export function formatNumber(value, digits = 3) {
  return Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : "−∞";
}

/** Describes a cell, the largest weights of a row, or the largest weights of a column. */
export function describePoint(map, rows, columns, point, strings) {
  if (!point) return "";
  const { row, column } = point;
  if (row !== undefined && column !== undefined) {
    return `${rows[row]} → ${columns[column]}: ${formatNumber(map.values[row * map.columns + column])}`;
  }
  if (row !== undefined) {
    const keys = strongest(map, row, SHOWN).map(([key, weight]) => `${strings.quote(columns[key])} ${formatNumber(weight)}`);
    return `${strings.quote(rows[row])} ${strings.attendsTo} ${keys.join(", ")}`;
  }
  const received = rows.map((label, query) => [label, map.values[query * map.columns + column]]);
  const sorted = received.filter(([, weight]) => !Number.isNaN(weight)).sort((a, b) => b[1] - a[1]);
  const queries = sorted.slice(0, SHOWN).map(([label, weight]) => `${strings.quote(label)} ${formatNumber(weight)}`);
  return `${strings.quote(columns[column])} ${strings.attendedToBy} ${queries.join(", ")}`;
}

/** Draws the colour scale of a map with its lowest and highest value. */
export function drawLegend(canvas, low, high, map, scale) {
  drawScale(canvas, scale);
  low.textContent = map.signed ? formatNumber(-map.high, 2) : "0";
  high.textContent = formatNumber(map.high, 2);
}

/** Draws the 256 colours of a scale side by side. */
export function drawScale(canvas, scale) {
  canvas.width = 256;
  canvas.height = 1;
  canvas.getContext("2d").putImageData(new ImageData(scale, 256, 1), 0, 0);
}
