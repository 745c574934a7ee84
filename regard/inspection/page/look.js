// The page of one sentence: its translation, every layer and head at a glance, and one of them at large.

import { makeScale } from "./colours.js";
import { HeadGrid } from "./grid.js";
import { Lines } from "./lines.js";
import { unpackHeads } from "./maps.js";
import { Matrix } from "./matrix.js";
import { SentencePair } from "./sentence.js";
import { describePoint, drawLegend } from "./description.js";
import { isDark, watchTheme } from "./theme.js";
import { browserLanguage, stringsFor } from "./strings.js";

const GROUPS = ["cross", "decoder", "encoder"];
const scene = JSON.parse(document.getElementById("scene").textContent);
const unpacked = new Map();
const state = { view: null, head: 0, zoom: 1, language: browserLanguage() };
const element = (id) => document.getElementById(id);
let words = stringsFor(state.language);
let grid, pair, pairMap;
const matrix = new Matrix(element("matrix"), (point) => pointAt(point));
const lines = new Lines(element("lines"), (point) => pointAt(point));

const load = (view) => {
  if (!unpacked.has(view)) unpacked.set(view, unpackHeads(view.data));
  return unpacked.get(view);
};
const scaleOf = (map) => makeScale(isDark(), map.signed);

function build() {
  words = stringsFor(state.language);
  document.documentElement.lang = state.language;
  document.title = `${scene.source} → ${scene.translation}`;
  element("about").textContent = scene.about;
  for (const node of document.querySelectorAll("[data-word]")) node.textContent = words[node.dataset.word];
  for (const node of document.querySelectorAll("[data-name]")) {
    node.setAttribute("aria-label", words[node.dataset.name]);
    node.title = words[node.dataset.name];
  }
  element("pair").replaceChildren();
  pair = new SentencePair(element("pair"), scene.labels.source, scene.labels.translation, pointAtTranslation);
  element("grid").replaceChildren();
  const groups = GROUPS.map((name) => ({
    title: words[name],
    hint: words[`${name}Hint`],
    views: scene.views.filter((view) => view.group === name),
  })).filter((group) => group.views.length);
  grid = new HeadGrid(element("grid"), groups, words, choose);
  grid.refresh(load, scaleOf);
  grid.choose(state.view, state.head);
  pointAtTranslation(null);
}

async function choose(view, head) {
  Object.assign(state, { view, head });
  if (matchMedia("(max-width: 900px)").matches) element("detail").scrollIntoView({ behavior: "smooth" });
  grid.choose(view, head);
  history.replaceState(null, "", `#${view.name}/${head === view.heads ? "mean" : head}`);
  await redraw();
}

async function redraw() {
  const { view, head } = state;
  const map = (await load(view))[head];
  if (view !== state.view || head !== state.head) return; // somebody was quicker
  element("chosen").textContent = `${view.name} · ${head === view.heads ? words.mean : `${words.head} ${head}`}`;
  const facts = [];
  if (head < view.heads && view.entropy) facts.push(`${view.entropy[head].toFixed(1)} ${words.bits}`);
  if (head < view.heads && view.distance) facts.push(`${view.distance[head].toFixed(1)} ${words.away}`);
  element("facts").textContent = [...facts, words.rowsAre].join(" · ");
  const rows = scene.labels[view.rows];
  const columns = scene.labels[view.columns];
  matrix.show(map, rows, columns, scaleOf(map), element("matrix").parentElement.clientWidth - 4, state.zoom);
  lines.show(map, rows, columns, element("lines").parentElement.clientWidth - 4);
  drawLegend(element("scale"), element("low"), element("high"), map, scaleOf(map));
  pointAt(null);
}

function pointAt(point) {
  if (!matrix.map) return;
  matrix.draw(point);
  lines.draw(point);
  element("told").textContent = describePoint(matrix.map, matrix.rows, matrix.columns, point, words);
}

function pointAtTranslation(point) {
  if (!pairMap) return;
  pair.show(pairMap, makeScale(isDark(), false), point);
  const told = describePoint(pairMap, scene.labels.translation, scene.labels.source, point, words);
  const said = scene.probabilities[point?.row];
  const probability = said === undefined ? "" : `${words.probability} ${(100 * said).toFixed(0)}% · `;
  element("aligned").textContent = told ? `${probability}${told}` : words.pointAtToken;
}

/** The head that the address names, as in #decoder.1.cross/3, or the one that the scene begins with. */
function firstChoice() {
  const [name, head] = decodeURIComponent(location.hash.slice(1)).split("/");
  const named = scene.views.find((view) => view.name === name);
  const number = head === "mean" ? named?.heads : Number(head);
  if (named && number >= 0 && number <= named.heads) return [named, number];
  return [scene.views[scene.initial.view], scene.initial.head];
}

function listen() {
  watchTheme(element("theme"), () => {
    grid.refresh(load, scaleOf);
    redraw();
    pointAtTranslation(null);
  });
  element("language").addEventListener("click", () => {
    state.language = state.language === "zh" ? "en" : "zh";
    build();
    redraw();
  });
  for (const [id, factor] of [["larger", 1.25], ["smaller", 0.8]]) {
    element(id).addEventListener("click", () => {
      state.zoom = Math.min(4, Math.max(0.4, state.zoom * factor));
      redraw();
    });
  }
  let waiting;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
}

[pairMap] = await unpackHeads(scene.alignment);
[state.view, state.head] = firstChoice();
build();
listen();
await redraw();
document.documentElement.dataset.ready = "true";
