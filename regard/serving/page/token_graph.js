// The graph of tokens of a DA-Transformer: vertices in a row, transitions as arcs, and the paths of different searches.

import { formatNumber } from "./description.js";
import { create, createScroller, createSvg } from "./dom.js";

export const GRAPH_STRINGS = {
  en: {
    about: "Each box is a vertex of the graph with its most probable token; dots are vertices that hardly any path visits. "
      + "The stronger an arc, the more probable is its transition on a path. Coloured: the path of the selected search, whose tokens form the translation.",
    searches: { greedy: "greedy: best transitions", lookahead: "lookahead: best transitions with their tokens",
      viterbi: "Viterbi: best path as a whole", beam: "beam search: sums over all paths of a translation" },
    paths: "Searches",
    graph: "Graph of tokens",
    point: "Point at a vertex, or move with the arrow keys, to see its transitions.",
    vertex: (number, token, probability) => `vertex ${number}: ${token} ${probability}`,
    instead: (token, probability) => `on the path as ${token}; most probable: ${probability}`,
    visited: (probability) => `on ${probability} of all paths`,
    next: (list) => `next: ${list}`,
    onPath: "on the selected path",
    rows: { vertex: "vertex", token: "token", probability: "probability", visits: "on paths", from: "from", to: "to", transition: "transition" },
  },
  zh: {
    about: "每个方框是图的一个顶点，写着概率最高的词元；圆点是几乎没有路径经过的顶点。弧线越清晰，路径经过这条边的概率越高。着色的是所选搜索方法的路径，路径上的词元组成译文。",
    searches: { greedy: "贪心：每步取最佳转移", lookahead: "前瞻：转移与词元一起取最佳", viterbi: "维特比：整条路径最佳", beam: "束搜索：把同一译文的所有路径相加" },
    paths: "搜索方法",
    graph: "词元图",
    point: "指向一个顶点，或用方向键移动，查看它的转移概率。",
    vertex: (number, token, probability) => `顶点 ${number}：${token} ${probability}`,
    instead: (token, probability) => `此路径上为 ${token}；概率最高的是 ${probability}`,
    visited: (probability) => `${probability} 的路径经过`,
    next: (list) => `下一顶点：${list}`,
    onPath: "在所选路径上",
    rows: { vertex: "顶点", token: "词元", probability: "概率", visits: "经过概率", from: "起点", to: "终点", transition: "转移概率" },
  },
};
const HEIGHT = 26, GAP = 8, DOT = 5, MARGIN = 10, MAX_ARC = 150, MAX_LABEL = 12;
const LEAST_VISITS = 0.01; // of a vertex with a label

const percent = (probability) => `${(100 * probability).toFixed(0)}%`;
const isWide = (character) => character.codePointAt(0) > 0x2e7f;

/** Return a label of at most `MAX_LABEL` Latin letters, and its width in pixels. */
function shorten(token) {
  const characters = Array.from(token);
  const size = (list) => list.reduce((sum, one) => sum + (isWide(one) ? 14 : 7.6), 0);
  const label = size(characters) <= MAX_LABEL * 7.6 ? token : `${characters.slice(0, isWide(characters[0]) ? 5 : MAX_LABEL - 1).join("")}…`;
  return { label, width: size(Array.from(label)) };
}

/** Return the left edge and the width of every vertex; those that hardly any path visits are narrow. */
function placeVertices({ tokens, visits, paths }) {
  const labels = tokens.map((token) => [token]);
  for (const path of paths) path.vertices.forEach((vertex, i) => labels[vertex].push(path.tokens[i]));
  let x = MARGIN;
  return labels.map((texts, vertex) => {
    const hasLabel = texts.length > 1 || visits[vertex] >= LEAST_VISITS;
    const width = hasLabel ? Math.max(36, ...texts.map((text) => shorten(text).width + 14)) : 2 * DOT;
    const place = { x, width, middle: x + width / 2, hasLabel };
    x += width + GAP;
    return place;
  });
}

/** Return the arc between two vertices whose upper edges are at `y`. */
function arcBetween(from, to, y) {
  const height = arcHeight(from, to) / 0.75; // a cubic Bézier curve reaches three quarters of its control points
  return `M${from.middle} ${y}C${from.middle} ${y - height} ${to.middle} ${y - height} ${to.middle} ${y}`;
}

const arcHeight = (from, to) => Math.min(MAX_ARC, 12 + 0.28 * (to.middle - from.middle));

/**
 * Create the drawing of a graph and the list of its paths. `selected` is the index of the path that is shown first;
 * `onSelect(index)` is called when another one is chosen. Returns the elements, and the numbers for a download.
 */
export function createGraph(graph, selected, language, onSelect) {
  const strings = GRAPH_STRINGS[language] ?? GRAPH_STRINGS.en;
  const readout = create("p", { class: "readout", "aria-live": "polite", text: strings.point });
  const picture = drawGraph(graph, strings, (text) => {
    readout.textContent = text;
  });
  const buttons = graph.paths.map((path, i) => {
    const select = () => {
      buttons.forEach((other, j) => other.setAttribute("aria-pressed", String(j === i)));
      picture.show(path);
      onSelect(i);
    };
    return create("button", { class: "alternative", "aria-pressed": String(i === selected), on: { click: select } },
      create("span", { class: "score", text: formatNumber(path.score) }),
      create("span", { text: `${path.text || "∅"} ` }, create("span", { class: "hint", text: strings.searches[path.search] })));
  });
  picture.show(graph.paths[selected]);
  const list = create("ol", { class: "alternatives", "aria-label": strings.paths }, ...buttons.map((button) => create("li", {}, button)));
  const scroller = createScroller("scroll", strings.graph, picture.svg);
  return { elements: [list, readout, scroller, create("p", { class: "hint", text: strings.about })], svg: picture.svg, rows: graphRows(graph, strings) };
}

/** Draw a graph; `describe(text)` is called with the description of a vertex that is pointed at. */
function drawGraph(graph, strings, describe) {
  const places = placeVertices(graph);
  const edges = [...graph.transitions];
  const known = new Set(edges.map(([from, to]) => `${from} ${to}`));
  for (const { vertices, transitions } of graph.paths) {
    vertices.forEach((to, i) => {
      const from = i ? vertices[i - 1] : 0;
      if (!known.has(`${from} ${to}`)) edges.push([from, to, transitions[i]]);
      known.add(`${from} ${to}`);
    });
  }
  const top = MARGIN + Math.max(...edges.map(([from, to]) => arcHeight(places[from], places[to])));
  const { x, width } = places.at(-1);
  const size = { width: x + width + MARGIN, height: top + HEIGHT + 24 };
  const svg = createSvg("svg", { class: "tree graph", ...size, viewBox: `0 0 ${size.width} ${size.height}`, role: "group", "aria-label": strings.graph });
  const arcs = edges.map(([from, to, probability]) => {
    const arc = createSvg("path", { class: "edge", d: arcBetween(places[from], places[to], top) });
    arc.style.opacity = 0.08 + 0.92 * Math.sqrt(probability * graph.visits[from]);
    return { from, to, arc };
  });
  let shown = graph.paths[0];
  const vertices = places.map((place, i) => {
    const group = createVertex(place, top);
    const point = () => {
      for (const { from, arc } of arcs) arc.classList.toggle("pointed", from === i);
      describe(describeVertex(graph, i, shown, strings));
    };
    for (const event of ["pointerenter", "focus", "click"]) group.addEventListener(event, point);
    return group;
  });
  svg.append(...arcs.map(({ arc }) => arc), ...vertices);
  moveWithArrows(svg, vertices);
  const show = (path) => {
    shown = path;
    const steps = new Set(path.vertices.map((to, i) => `${i ? path.vertices[i - 1] : 0} ${to}`));
    for (const { from, to, arc } of arcs) {
      const isOnPath = steps.has(`${from} ${to}`);
      arc.classList.toggle("won", isOnPath);
      if (isOnPath) svg.insertBefore(arc, vertices[0]); // above the other arcs
    }
    vertices.forEach((group, i) => {
      const step = path.vertices.indexOf(i);
      group.classList.toggle("won", step >= 0 || i === 0);
      const token = step >= 0 ? path.tokens[step] : graph.tokens[i];
      if (places[i].hasLabel) group.querySelector("text").textContent = shorten(token).label;
      group.querySelector(".score").textContent = places[i].hasLabel && token === graph.tokens[i] ? percent(graph.probabilities[i]) : "";
      group.setAttribute("aria-label", describeVertex(graph, i, path, strings));
    });
  };
  return { svg, show };
}

function createVertex({ x, width, middle, hasLabel }, top) {
  const group = createSvg("g", { class: "node", role: "img", tabindex: -1 });
  group.append(
    hasLabel ? createSvg("rect", { x, y: top, width, height: HEIGHT, rx: 7 })
      : createSvg("rect", { x, y: top + HEIGHT / 2 - DOT, width, height: 2 * DOT, rx: DOT }),
    createSvg("text", { x: middle, y: top + 17.5 }),
    createSvg("text", { x: middle, y: top + HEIGHT + 15, class: "score" }));
  return group;
}

/** One vertex is reached with the Tab key, the others with the arrow keys. */
function moveWithArrows(svg, vertices) {
  vertices[0].setAttribute("tabindex", 0);
  svg.addEventListener("focusin", ({ target }) => {
    const vertex = target.closest(".node");
    for (const other of vertices) other.setAttribute("tabindex", other === vertex ? 0 : -1);
  });
  svg.addEventListener("keydown", (event) => {
    const at = vertices.indexOf(event.target.closest(".node"));
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: vertices.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    vertices[next]?.focus();
    vertices[next]?.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

/** Return the token of a vertex, the probability of its visit, and its most probable transitions. */
function describeVertex({ tokens, probabilities, visits, transitions }, vertex, path, strings) {
  const step = path.vertices.indexOf(vertex);
  const parts = [strings.vertex(vertex, tokens[vertex], percent(probabilities[vertex]))];
  if (step >= 0 && path.tokens[step] !== tokens[vertex]) {
    parts[0] = strings.vertex(vertex, path.tokens[step], "");
    parts.push(strings.instead(path.tokens[step], `${tokens[vertex]} ${percent(probabilities[vertex])}`));
  }
  parts.push(strings.visited(percent(visits[vertex])));
  if (step >= 0 || vertex === 0) parts.push(strings.onPath);
  const nexts = transitions.filter(([from]) => from === vertex).map(([, to, probability]) => `${to} ${tokens[to]} ${percent(probability)}`);
  if (nexts.length) parts.push(strings.next(nexts.join(", ")));
  return parts.join(" · ");
}

/** Return the vertices and the transitions of a graph as rows of a table. */
function graphRows({ tokens, probabilities, visits, transitions, paths }, { rows }) {
  const isOn = ({ vertices }, i) => (i === 0 || vertices.includes(i) ? 1 : 0);
  return [
    [rows.vertex, rows.token, rows.probability, rows.visits, ...paths.map(({ search }) => search)],
    ...tokens.map((token, i) => [i, token, probabilities[i], visits[i], ...paths.map((path) => isOn(path, i))]),
    [rows.from, rows.to, rows.transition],
    ...transitions,
  ];
}
