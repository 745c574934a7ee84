// What is pointed at on a map, in words and numbers, and what its colours mean.

import { strongest } from "./maps.js";

/** A sentence about a row, a column or both of a map. */
export function describePoint(map, rows, columns, point, words) {
  if (!point) return "";
  const { row, column } = point;
  const number = (value) => (Number.isNaN(value) ? "−∞" : value.toFixed(3));
  if (row !== undefined && column !== undefined) {
    return `${rows[row]} → ${columns[column]}: ${number(map.values[row * map.columns + column])}`;
  }
  if (row !== undefined) {
    const most = strongest(map, row, 4).map(([place, weight]) => `${columns[place]} ${number(weight)}`);
    return `${rows[row]} ${words.looks} ${most.join(", ")}`;
  }
  const received = rows.map((label, place) => [label, map.values[place * map.columns + column]]);
  const seen = received.filter(([, weight]) => !Number.isNaN(weight)).sort((a, b) => b[1] - a[1]);
  const most = seen.slice(0, 4).map(([label, weight]) => `${label} ${number(weight)}`);
  return `${columns[column]} ${words.lookedAt} ${most.join(", ")}`;
}

/** Draws a map's colours from its lowest to its highest value, and writes these beside them. */
export function drawLegend(canvas, low, high, map, scale) {
  drawScale(canvas, scale);
  low.textContent = map.signed ? (-map.high).toFixed(2) : "0";
  high.textContent = map.high.toFixed(2);
}

/** The colours of a scale side by side. */
export function drawScale(canvas, scale) {
  canvas.width = 256;
  canvas.height = 1;
  canvas.getContext("2d").putImageData(new ImageData(scale, 256, 1), 0, 0);
}
