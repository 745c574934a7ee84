// A map with numbered axes as a figure.

import { FONT, pageColours, prepare } from "./canvas.js";
import { makeScale } from "./colours.js";
import { drawLegend, formatNumber } from "./description.js";
import { create } from "./dom.js";
import { paint } from "./matrix.js";
import { mapRows, setData } from "./panel_data.js";
import { Pointing, moveIndex } from "./pointing.js";
import { isDark } from "./theme.js";

const LEFT = 46, TOP = 6, BOTTOM = 34;
const MIN_SIDE = 120, MAX_HEIGHT = 420;
const PIXELS_PER_TICK = 46;

/** Create a figure of a map; the value at the point is shown below it. `axes` are the names of rows and columns. */
export function createPicture(title, map, maxWidth, axes) {
  const canvas = create("canvas", { "aria-label": `${title}, ${axes.join(" × ")}` });
  setData(canvas, () => mapRows(map));
  const readout = create("span", { class: "readout", "aria-live": "polite" });
  const width = Math.min(maxWidth, innerWidth - 60) - LEFT;
  const height = Math.min(MAX_HEIGHT, Math.max(MIN_SIDE, (width * map.rows) / map.columns));
  const scale = makeScale(isDark(), map.signed);
  const image = paint(map, scale);
  const draw = (point) => {
    const context = prepare(canvas, LEFT + width, TOP + height + BOTTOM);
    context.translate(0, TOP); // room for the first row label
    context.imageSmoothingEnabled = false;
    context.drawImage(image, LEFT, 0, width, height);
    drawAxes(context, map, width, height, axes);
    if (point) drawCell(context, map, width, height, point);
    readout.textContent = point ? `${axes[0]} ${point.row}, ${axes[1]} ${point.column}: ${valueAt(map, point)}` : "";
  };
  new Pointing(draw).listen(canvas, {
    map,
    locate: ({ offsetX, offsetY }) => {
      const row = Math.floor(((offsetY - TOP) / height) * map.rows);
      const column = Math.floor(((offsetX - LEFT) / width) * map.columns);
      return row >= 0 && row < map.rows && column >= 0 && column < map.columns ? { row, column } : null;
    },
    move: (point, x, y) => ({
      row: moveIndex(point?.row, point ? y : 0, map.rows), column: moveIndex(point?.column, point ? x : 0, map.columns),
    }),
    boxOf: () => [0, 0, 0, 0],
  });
  draw(null);
  const [colours, low, high] = [create("canvas"), create("span"), create("span")];
  drawLegend(colours, low, high, map, scale);
  const legend = create("span", { class: "legend" }, low, colours, high);
  const footer = create("div", { class: "figure-footer" }, readout, legend);
  return create("figure", { class: "plain" }, create("h3", { text: title }), canvas, footer);
}

function valueAt(map, { row, column }) {
  return formatNumber(map.values[row * map.columns + column]);
}

/** Draw the names of the axes, and numbers at a distance at which they can be read. */
function drawAxes(context, map, width, height, [rowName, columnName]) {
  const colours = pageColours();
  context.fillStyle = colours.faint;
  context.font = `11px ${FONT}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const row of ticks(map.rows, height)) context.fillText(row, LEFT - 6, ((row + 0.5) / map.rows) * height);
  context.textAlign = "center";
  for (const column of ticks(map.columns, width)) {
    context.fillText(column, LEFT + ((column + 0.5) / map.columns) * width, height + 9);
  }
  context.fillText(columnName, LEFT + width / 2, height + 25);
  context.save();
  context.translate(9, height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(rowName, 0, 0);
  context.restore();
}

/** Return every 1st, 2nd, 5th, 10th, … index, so that the labels do not overlap. */
function ticks(count, size) {
  const least = (count * PIXELS_PER_TICK) / size;
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((candidate) => candidate >= least) ?? 1000;
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}

function drawCell(context, map, width, height, { row, column }) {
  context.strokeStyle = pageColours().accent;
  context.lineWidth = 1.5;
  const [cellWidth, cellHeight] = [width / map.columns, height / map.rows];
  context.strokeRect(LEFT, row * cellHeight, width, cellHeight);
  context.strokeRect(LEFT + column * cellWidth, 0, cellWidth, height);
}
