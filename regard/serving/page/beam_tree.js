// The tree of a beam search as SVG: a column for each step, sorted by score, with edges to the parents.

import { formatNumber } from "./description.js";
import { createSvg } from "./dom.js";
import { setData } from "./panel_data.js";

const COLUMN_WIDTH = 132, ROW_HEIGHT = 34, NODE_WIDTH = 100, NODE_HEIGHT = 26, MARGIN = 8;
const MAX_LABEL_WIDTH = 7; // in Latin letters
/** Outcome of a hypothesis that was kept at its own step, but whose continuations were all dropped. */
const DROPPED_LATER = "dropped: its continuations were outbid";

/**
 * Draw a tree; `onPoint(node, outcome)`. The function `show(step, follow)` of the result hides later steps and their effects
 * on the outcomes of earlier hypotheses; with `follow` it scrolls to the step.
 */
export function drawTree(container, nodes, label, onPoint) {
  const columns = sortedColumns(nodes);
  const positions = new Map();
  columns.forEach((column, step) => column.forEach((i, row) => {
    positions.set(i, { x: MARGIN + step * COLUMN_WIDTH, y: MARGIN + row * ROW_HEIGHT });
  }));
  const width = columns.length * COLUMN_WIDTH + MARGIN;
  const height = Math.max(...columns.map((column) => column.length)) * ROW_HEIGHT + MARGIN;
  const svg = createSvg("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  const path = new Set(winningPath(nodes));
  const lastStep = columns.length - 1;
  let shownStep = lastStep;
  const drawn = [];
  const groups = columns.map((column) => {
    const group = createSvg("g", {});
    for (const i of column) {
      const node = nodes[i];
      const point = () => onPoint(node, outcomeAt(node, shownStep, lastStep));
      const parts = drawNode(node, positions.get(i), positions.get(node.parent), point);
      group.append(...parts);
      drawn.push([i, parts]);
    }
    svg.append(group);
    return group;
  });
  container.append(svg);
  setData(svg, () => treeRows(nodes));
  const show = (step, follow = true) => {
    shownStep = step;
    for (const [i, parts] of drawn) {
      const known = outcomeAt(nodes[i], step, lastStep);
      const outcome = known === DROPPED_LATER ? "lost" : known.split(":")[0];
      const won = step === lastStep && path.has(i) ? " won" : "";
      for (const part of parts) part.setAttribute("class", `${part.dataset.part} ${outcome}${won}`);
    }
    groups.forEach((group, groupStep) => group.classList.toggle("later", groupStep > step));
    if (follow) scrollTo(container, MARGIN + (step + 1) * COLUMN_WIDTH);
  };
  return { show };
}

/** Return the nodes as a table; `parent` is the number of another row. */
function treeRows(nodes) {
  const names = ["parent", "step", "token", "log_prob", "cumulative_log_prob", "score", "outcome"];
  return [["node", ...names], ...nodes.map((node, i) => [i, ...names.map((name) => node[name] ?? "")])];
}

/** Return the indices of the nodes of each step, sorted by score. */
function sortedColumns(nodes) {
  const columns = [];
  nodes.forEach((node, i) => (columns[node.step] ??= []).push(i));
  const score = (i) => nodes[i].score ?? -Infinity;
  for (const column of columns) column.sort((a, b) => score(b) - score(a) || 0); // −∞ − (−∞) is NaN
  return columns;
}

function scrollTo(container, right) {
  const isHidden = right > container.scrollLeft + container.clientWidth || right - COLUMN_WIDTH < container.scrollLeft;
  if (isHidden) container.scrollLeft = Math.max(0, right - container.clientWidth / 2);
}

/** Return the outcome of a hypothesis as far as it was known at a step. */
function outcomeAt({ outcome, step: ownStep }, step, lastStep) {
  if (step === lastStep) return outcome;
  if (outcome.startsWith("ended")) return "ended: open";
  return outcome === DROPPED_LATER && step === ownStep ? "kept" : outcome;
}

/** Return the edge and the box of a node. Their classes are set by `show`, from `data-part` and the outcome. */
function drawNode(node, position, parent, onPoint) {
  const parts = [];
  if (parent) {
    const [x1, y1] = [parent.x + NODE_WIDTH, parent.y + NODE_HEIGHT / 2];
    const [x2, y2] = [position.x, position.y + NODE_HEIGHT / 2];
    const middle = (x1 + x2) / 2;
    const d = `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
    parts.push(createSvg("path", { "data-part": "edge", d }));
  }
  const { x, y } = position;
  const group = createSvg("g", { "data-part": "node", tabindex: "0", role: "button" });
  const box = createSvg("rect", { x, y, width: NODE_WIDTH, height: NODE_HEIGHT, rx: 7 });
  const label = createSvg("text", { x: x + 8, y: y + 17.5 }, shorten(node.token));
  const score = createSvg("text", { x: x + NODE_WIDTH - 6, y: y + 17.5, class: "score" }, formatNumber(node.score, 2));
  const name = createSvg("title", {}, `${node.token} ${score.textContent}`); // the token in full
  group.append(name, box, label, score);
  for (const event of ["pointerenter", "focus", "click"]) group.addEventListener(event, onPoint);
  parts.push(group);
  return parts;
}

/** Shorten a token to the width of its box. Chinese characters are twice as wide as Latin letters. */
function shorten(token) {
  const characters = Array.from(token);
  const width = (count) => characters.slice(0, count).reduce((sum, one) => sum + (one.codePointAt(0) > 0x2e7f ? 2 : 1), 0);
  if (width(characters.length) <= MAX_LABEL_WIDTH) return token;
  let count = characters.length;
  while (count > 1 && width(count) > MAX_LABEL_WIDTH - 1) count--;
  return `${characters.slice(0, count).join("")}…`;
}

/** Return the indices of the nodes of the best hypothesis, last token first. */
export function winningPath(nodes) {
  const ends = nodes.map((_, i) => i).filter((i) => nodes[i].outcome === "ended");
  const best = ends.sort((a, b) => nodes[b].score - nodes[a].score)[0];
  const path = [];
  for (let i = best ?? -1; i >= 0; i = nodes[i].parent) path.push(i);
  return path;
}
