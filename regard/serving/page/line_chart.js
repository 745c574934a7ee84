// Line charts with axes, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 460, HEIGHT = 200, LEFT = 52, BOTTOM = 26, TOP = 10, RIGHT = 10;
const TICKS = 4;

/** Create a figure of [{name, points: [[x, y], …]}]; the first line is solid, the others are dashed. */
export function createLineChart(title, lines, xName) {
  const points = lines.flatMap((line) => line.points);
  const [lowX, highX] = rangeOf(points.map(([x]) => x));
  const [lowY, highY] = rangeOf(points.map(([, y]) => y));
  const toX = (x) => LEFT + ((x - lowX) / (highX - lowX)) * (WIDTH - LEFT - RIGHT);
  const toY = (y) => HEIGHT - BOTTOM - ((y - lowY) / (highY - lowY)) * (HEIGHT - BOTTOM - TOP);
  const svg = createSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "line-chart" });
  const last = lines.map(({ name, points: ownPoints }) => `${name} ${formatNumber(ownPoints.at(-1)[1])}`).join(", ");
  svg.setAttribute("aria-label", `${title}: ${last}`);
  for (let i = 0; i <= TICKS; i++) {
    const [x, y] = [lowX + ((highX - lowX) * i) / TICKS, lowY + ((highY - lowY) * i) / TICKS];
    svg.append(
      createSvg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: toY(y), y2: toY(y), class: "grid" }),
      createText(LEFT - 6, toY(y) + 4, formatNumber(y), "end"),
      createText(toX(x), HEIGHT - 8, formatNumber(x), i === TICKS ? "end" : "middle"));
  }
  lines.forEach(({ points: ownPoints }, number) => {
    const path = ownPoints.map(([x, y]) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`).join(" ");
    svg.append(createSvg("polyline", { points: path, class: `line line-${number}` }));
  });
  const figure = document.createElement("figure");
  figure.className = "plain chart";
  const heading = document.createElement("h3");
  heading.textContent = title;
  const caption = document.createElement("figcaption");
  caption.className = "hint";
  caption.textContent = `${lines.map(({ name }, i) => `${i ? "╌╌" : "──"} ${name}`).join("   ")}   (${xName})`;
  figure.append(heading, svg, caption);
  return figure;
}

function rangeOf(values) {
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

function formatNumber(value) {
  return Number.isInteger(value) && Math.abs(value) < 1e6 ? String(value) : value.toPrecision(3);
}

function createText(x, y, text, anchor) {
  const element = createSvg("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

function createSvg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
