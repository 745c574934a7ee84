// Line charts with axes, as SVG.

import { create, createSvg } from "./dom.js";

const WIDTH = 460, HEIGHT = 200, LEFT = 52, BOTTOM = 26, TOP = 10, RIGHT = 10;
const INTERVALS = 6; // between the labels of an axis, at most
const RADIUS = 3; // of a point that no line can connect

/** Create a figure of [{name, points: [[x, y], …]}], whose x are whole numbers; the first line is solid, the others dashed. */
export function createLineChart(title, lines, xName) {
  const points = lines.flatMap((line) => line.points);
  const [lowX, highX] = rangeOf(points.map(([x]) => x));
  const [lowY, highY] = rangeOf(points.map(([, y]) => y));
  const toX = (x) => LEFT + ((x - lowX) / (highX - lowX)) * (WIDTH - LEFT - RIGHT);
  const toY = (y) => HEIGHT - BOTTOM - ((y - lowY) / (highY - lowY)) * (HEIGHT - BOTTOM - TOP);
  const svg = createSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "line-chart" });
  const last = lines.map(({ name, points: ownPoints }) => `${name} ${formatNumber(ownPoints.at(-1)[1])}`).join(", ");
  svg.setAttribute("aria-label", `${title}: ${last}`);
  for (const y of ticks(lowY, highY)) {
    svg.append(
      createSvg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: toY(y), y2: toY(y), class: "grid" }),
      createSvg("text", { x: LEFT - 6, y: toY(y) + 4, "text-anchor": "end" }, formatNumber(y)));
  }
  for (const x of ticks(lowX, highX, 1)) {
    const anchor = toX(x) > WIDTH - 2 * RIGHT ? "end" : "middle";
    svg.append(createSvg("text", { x: toX(x), y: HEIGHT - 8, "text-anchor": anchor }, formatNumber(x)));
  }
  lines.forEach(({ points: ownPoints }, number) => {
    const path = ownPoints.map(([x, y]) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`).join(" ");
    const [[x, y]] = ownPoints;
    svg.append(ownPoints.length > 1 ? createSvg("polyline", { points: path, class: `line line-${number}` })
      : createSvg("circle", { cx: toX(x), cy: toY(y), r: RADIUS, class: `line line-${number}` }));
  });
  const keys = lines.map(({ name }, i) =>
    create("span", { class: "key" }, create("span", { class: `line-${i}`, text: i ? "╌╌" : "──" }), ` ${name}`));
  return create("figure", { class: "plain chart" },
    create("h3", { text: title }), svg, create("figcaption", { class: "hint" }, ...keys, `(${xName})`));
}

function rangeOf(values) {
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

/** Return round numbers within a range, at least `leastStep` apart. */
function ticks(low, high, leastStep = 0) {
  const wanted = Math.max(leastStep, (high - low) / INTERVALS);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= wanted * 0.999);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

function formatNumber(value) {
  return String(Number(value.toPrecision(3))).replace("-", "−");
}
