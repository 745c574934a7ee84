// The page of one sentence: its translation, an overview of all heads, and the selected head in detail.

import { makeScale } from "./colours.js";
import { describePoint } from "./description.js";
import { create, createButton, debounce } from "./dom.js";
import { createAttribution, createHeads, createLens, createNextTokens, createPatching } from "./explanation.js";
import { explanationStringsFor } from "./explanation_strings.js";
import { HeadGrid } from "./grid.js";
import { HeadPanel } from "./head_panel.js";
import { unpackHeads } from "./maps.js";
import { SentencePair } from "./sentence.js";
import { initialLanguage, stringsFor, switchLanguage } from "./strings.js";
import { isDark, watchTheme } from "./theme.js";

const GROUPS = ["cross", "decoder", "encoder"];
const MIN_ZOOM = 0.4, MAX_ZOOM = 4;
const element = (id) => document.getElementById(id);
const scene = JSON.parse(element("scene").textContent);
const loadedMaps = new Map(); // promises of the maps by view
const state = { view: null, head: 0, zoom: 1, language: initialLanguage() };
let strings, grid, panel, pair, pairMap;

const load = (view) => {
  if (!loadedMaps.has(view)) loadedMaps.set(view, unpackHeads(view.data));
  return loadedMaps.get(view);
};
const scaleOf = (map) => makeScale(isDark(), map.signed);

/** Fill the page with everything that depends on the language. */
function build() {
  strings = { ...stringsFor(state.language), ...explanationStringsFor(state.language) };
  document.documentElement.lang = state.language === "zh" ? "zh-CN" : "en";
  document.title = `${scene.source} → ${scene.translation}`;
  element("about").textContent = scene.about;
  element("warning").textContent = scene.warning;
  element("warning").hidden = !scene.warning;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = strings[node.dataset.text];
  for (const node of document.querySelectorAll("[data-label]")) {
    node.setAttribute("aria-label", strings[node.dataset.label]);
    node.title = strings[node.dataset.label];
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
  panel = new HeadPanel(strings);
  const zoom = (factor) => {
    state.zoom = Math.min(MAX_ZOOM, Math.max(MIN_ZOOM, state.zoom * factor));
    redraw();
  };
  element("detail").replaceChildren(
    create("div", { class: "bar controls" },
      createButton("−", () => zoom(0.8), { "aria-label": strings.zoomOut }),
      createButton("+", () => zoom(1.25), { "aria-label": strings.zoomIn })),
    panel.element);
  pointAtTranslation(null);
  showExplanations();
}

/** Show the explanations of words, if the scene has any. */
function showExplanations() {
  const { explanations } = scene;
  element("why").hidden = !explanations.length;
  if (!explanations.length) return;
  const titled = (title, hint, ...content) => create("details", {},
    create("summary", { text: title }), create("p", { class: "hint", text: hint }), ...content);
  const blocks = explanations.map(({ attribution, lens, heads, patching }) => create("div", { class: "explanation" },
    ...createAttribution(attribution, strings),
    titled(strings.nextTitle, strings.nextHint, createNextTokens(lens, attribution.start)),
    titled(strings.lensTitle, strings.lensHint, createLens(lens, strings, attribution.start)),
    titled(strings.headsRanked, strings.headsRankedHint, createHeads(heads, strings)),
    ...(patching ? [titled(strings.patchingTitle, strings.patchingHint, ...createPatching(patching, strings))] : [])));
  element("why").replaceChildren(create("h2", { text: strings.whyTitle }), ...blocks);
}

async function select(view, head) {
  Object.assign(state, { view, head });
  if (matchMedia("(max-width: 900px)").matches) element("detail").scrollIntoView({ behavior: "smooth" });
  grid.select(view, head);
  rememberHead(`#${view.name}/${head === view.heads ? "mean" : head}`);
  await redraw();
}

/** Keep the head in the address. A frame of a notebook has no address of its own, and forbids it. */
function rememberHead(fragment) {
  try {
    history.replaceState(null, "", fragment);
  } catch {
    // The page works without it.
  }
}

/** Draw the selected head. */
async function redraw() {
  const { view, head } = state;
  const map = (await load(view))[head];
  if (view !== state.view || head !== state.head) return; // another head was selected meanwhile
  const isMean = head === view.heads;
  const facts = [];
  if (!isMean && view.entropy) facts.push(strings.entropy(view.entropy[head].toFixed(1)));
  if (!isMean && view.distance) facts.push(strings.distance(view.distance[head].toFixed(1)));
  const [rows, columns] = [scene.labels[view.rows], scene.labels[view.columns]];
  const title = `${view.name} · ${isMean ? strings.mean : `${strings.head} ${head}`}`;
  panel.show(title, [...facts, strings.axes].join(" · "), { map, weights: map, rows, columns }, state.zoom);
}

function pointAtTranslation(point) {
  if (!pairMap) return;
  pair.show(pairMap, makeScale(isDark(), false), point);
  const description = describePoint(pairMap, scene.labels.translation, scene.labels.source, point, strings);
  const value = scene.probabilities[point?.row];
  const probability = value === undefined ? "" : `${strings.probability} ${(100 * value).toFixed(0)}% · `;
  element("aligned").textContent = description ? `${probability}${description}` : strings.pointAtToken;
}

/** Return the head in the address, such as #decoder.1.cross/3, or the initial head of the scene. */
function initialHead() {
  const [name, head] = decodeURIComponent(location.hash.slice(1)).split("/");
  const named = scene.views.find((view) => view.name === name);
  const number = head === "mean" ? named?.heads : Number(head);
  if (named && number >= 0 && number <= named.heads) return [named, number];
  return [scene.views[scene.initial.view], scene.initial.head];
}

async function start() {
  pairMap = (await unpackHeads(scene.alignment))[0];
  [state.view, state.head] = initialHead();
  watchTheme(element("theme"), () => {
    build();
    redraw();
  });
  build();
  element("language").addEventListener("click", () => {
    state.language = switchLanguage(state.language);
    build();
    redraw();
  });
  addEventListener("resize", debounce(redraw, 120));
  await redraw();
  document.documentElement.dataset.ready = "true";
}

start();
