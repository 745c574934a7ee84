// The page of one sentence: its translation, an overview of all heads, and the selected head in detail.

import { makeScale } from "./colours.js";
import { createAttribution, createHeads, createLens, createNextTokens, createPatching } from "./explanation.js";
import { explanationStringsFor } from "./explanation_strings.js";
import { HeadGrid } from "./grid.js";
import { Lines } from "./lines.js";
import { unpackHeads } from "./maps.js";
import { Matrix } from "./matrix.js";
import { Pointing } from "./pointing.js";
import { SentencePair } from "./sentence.js";
import { describePoint, drawLegend } from "./description.js";
import { isDark, watchTheme } from "./theme.js";
import { initialLanguage, stringsFor, switchLanguage } from "./strings.js";
import { WeightsTable } from "./weights_table.js";

const GROUPS = ["cross", "decoder", "encoder"];
const scene = JSON.parse(document.getElementById("scene").textContent);
const loadedMaps = new Map(); // promises of the maps by view
const state = { view: null, head: 0, zoom: 1, language: initialLanguage() };
const element = (id) => document.getElementById(id);
let strings = stringsFor(state.language);
let grid, pair, pairMap, table;
const pointing = new Pointing((point) => pointAt(point));
const matrix = new Matrix(element("matrix"), pointing);
const lines = new Lines(element("lines"), pointing);

const load = (view) => {
  if (!loadedMaps.has(view)) loadedMaps.set(view, unpackHeads(view.data));
  return loadedMaps.get(view);
};
const scaleOf = (map) => makeScale(isDark(), map.signed);

function build() {
  strings = stringsFor(state.language);
  document.documentElement.lang = state.language;
  document.title = `${scene.source} → ${scene.translation}`;
  element("about").textContent = scene.about;
  element("warning").textContent = scene.warning;
  element("warning").hidden = !scene.warning;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = strings[node.dataset.text];
  for (const node of document.querySelectorAll("[data-label]")) {
    node.setAttribute("aria-label", strings[node.dataset.label]);
    if (node.localName === "button") node.title = strings[node.dataset.label];
  }
  element("pair").replaceChildren();
  pair = new SentencePair(element("pair"), scene.labels.source, scene.labels.translation, pointAtTranslation);
  element("grid").replaceChildren();
  const groups = GROUPS.map((name) => ({
    title: strings[name],
    hint: strings[`${name}Hint`],
    views: scene.views.filter((view) => view.group === name),
  })).filter((group) => group.views.length);
  grid = new HeadGrid(element("grid"), groups, strings, select);
  grid.refresh(load, scaleOf);
  grid.select(state.view, state.head);
  table = new WeightsTable(strings);
  element("table").replaceChildren(table.element);
  pointAtTranslation(null);
  showExplanations();
}

/** Shows the explanations of words, if the scene has any. */
function showExplanations() {
  const { explanations } = scene;
  element("why").hidden = !explanations.length;
  if (!explanations.length) return;
  const texts = { ...strings, ...explanationStringsFor(state.language) };
  const titled = (title, hint, ...content) => {
    const block = document.createElement("details");
    const summary = document.createElement("summary");
    const note = document.createElement("p");
    note.className = "hint";
    summary.textContent = title;
    note.textContent = hint;
    block.append(summary, note, ...content);
    return block;
  };
  const heading = document.createElement("h2");
  heading.textContent = texts.whyTitle;
  const blocks = explanations.map(({ attribution, lens, heads, patching }) => {
    const block = document.createElement("div");
    block.className = "explanation";
    block.append(
      ...createAttribution(attribution, texts),
      titled(texts.nextTitle, texts.nextHint, createNextTokens(lens, attribution.start)),
      titled(texts.lensTitle, texts.lensHint, createLens(lens, texts, attribution.start)),
      titled(texts.headsRanked, texts.headsRankedHint, createHeads(heads, texts)));
    if (patching) block.append(titled(texts.patchingTitle, texts.patchingHint, ...createPatching(patching, texts)));
    return block;
  });
  element("why").replaceChildren(heading, ...blocks);
}

async function select(view, head) {
  Object.assign(state, { view, head });
  if (matchMedia("(max-width: 900px)").matches) element("detail").scrollIntoView({ behavior: "smooth" });
  grid.select(view, head);
  rememberHead(`#${view.name}/${head === view.heads ? "mean" : head}`);
  await redraw();
}

/** Keeps the head in the address. A frame of a notebook has no address of its own, and forbids it. */
function rememberHead(fragment) {
  try {
    history.replaceState(null, "", fragment);
  } catch {
    // The page works without it.
  }
}

async function redraw() {
  const { view, head } = state;
  const map = (await load(view))[head];
  if (view !== state.view || head !== state.head) return; // another head was selected meanwhile
  element("selected").textContent = `${view.name} · ${head === view.heads ? strings.mean : `${strings.head} ${head}`}`;
  const facts = [];
  if (head < view.heads && view.entropy) facts.push(strings.entropy(view.entropy[head].toFixed(1)));
  if (head < view.heads && view.distance) facts.push(strings.distance(view.distance[head].toFixed(1)));
  element("facts").textContent = [...facts, strings.axes].join(" · ");
  const rows = scene.labels[view.rows];
  const columns = scene.labels[view.columns];
  matrix.show(map, rows, columns, scaleOf(map), element("matrix").parentElement.clientWidth - 4, state.zoom);
  lines.show(map, rows, columns, element("lines").parentElement.clientWidth - 4, state.zoom);
  table.show(map, rows, columns);
  drawLegend(element("scale"), element("low"), element("high"), map, scaleOf(map));
  pointing.pin(null);
}

function pointAt(point) {
  if (!matrix.map) return;
  matrix.draw(point);
  lines.draw(point);
  const description = describePoint(matrix.map, matrix.rows, matrix.columns, point, strings);
  element("readout").textContent = description || strings.pointHint;
}

function pointAtTranslation(point) {
  if (!pairMap) return;
  pair.show(pairMap, makeScale(isDark(), false), point);
  const description = describePoint(pairMap, scene.labels.translation, scene.labels.source, point, strings);
  const value = scene.probabilities[point?.row];
  const probability = value === undefined ? "" : `${strings.probability} ${(100 * value).toFixed(0)}% · `;
  element("aligned").textContent = description ? `${probability}${description}` : strings.pointAtToken;
}

/** Returns the head in the address, such as #decoder.1.cross/3, or the initial head of the scene. */
function initialHead() {
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
    showExplanations();
  });
  element("language").addEventListener("click", () => {
    state.language = switchLanguage(state.language);
    build();
    redraw();
  });
  for (const [id, factor] of [["larger", 1.25], ["smaller", 0.8]]) {
    element(id).addEventListener("click", () => {
      state.zoom = Math.min(4, Math.max(0.4, state.zoom * factor));
      redraw();
    });
  }
  let timer;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(redraw, 120);
  });
}

[pairMap] = await unpackHeads(scene.alignment);
[state.view, state.head] = initialHead();
build();
listen();
await redraw();
document.documentElement.dataset.ready = "true";
