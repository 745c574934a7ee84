// The page: a model, a sentence, and sections of which one is open. What is closed asks for nothing.

import { ask, setKey, speak } from "./api.js";
import { calmly, make } from "./make.js";
import { section as arithmetic } from "./arithmetic.js";
import { section as attention } from "./attention.js";
import { section as beam } from "./beam.js";
import { section as change } from "./change.js";
import { section as image } from "./image.js";
import { phrasesOf } from "./phrases.js";
import { section as positions } from "./positions.js";
import { section as translate } from "./translate.js";
import { watchTheme } from "./theme.js";
import { browserLanguage } from "./strings.js";

const SECTIONS = [translate, attention, arithmetic, beam, change, positions, image];
const element = (id) => document.getElementById(id);

/** What sections share. */
const page = {
  models: [],
  model: null,
  text: "I love apples",
  language: browserLanguage(),
  words: phrasesOf(browserLanguage()),
  again: () => show(),
  tell: (error) => tellError(error),
};
let open = translate;
let leaving = new AbortController();

/** Opens the section anew, and drops whatever the one before was waiting for. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  document.documentElement.removeAttribute("data-ready");
  page.text = element("text").value; // also what was typed and not submitted
  remember();
  mark();
  const place = make("div", { class: `section section-${open.id}` });
  element("panel").replaceChildren(place);
  tellProblem("");
  try {
    const missing = whyNot(open) || (open.reads && !page.text.trim() ? page.words.blank : "");
    if (missing) place.append(make("p", { class: "card missing", text: missing }));
    else await open.show(place, page, signal);
  } catch (error) {
    if (signal.aborted) return;
    tellError(error);
  }
  if (!signal.aborted) document.documentElement.dataset.ready = open.id;
}

/** Why a section has nothing to show for this model, as a sentence. */
function whyNot({ needs }) {
  const { model, words } = page;
  if (!model) return words.noModel;
  if (needs.some((need) => model.sections.includes(need))) return "";
  if (model.engine !== "regard" && !needs.includes("image")) return words.lacksProbe(model.name, model.engine);
  if (model.lacks) return words.lacksTokenizer(model.name);
  if (model.sections.includes("views")) return words.isViews(model.name);
  return model.sections.includes("image") ? words.isImage(model.name) : words.isText(model.name);
}

function mark() {
  const { words, model } = page;
  speak(words);
  document.documentElement.lang = page.language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-word]")) node.textContent = words[node.dataset.word];
  for (const node of document.querySelectorAll("[data-name]")) {
    node.setAttribute("aria-label", words[node.dataset.name]);
    node.title = words[node.dataset.name];
  }
  for (const tab of element("tabs").children) {
    const chosen = tab.dataset.section === open.id;
    tab.textContent = words.sections[tab.dataset.section];
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const languages = model?.source ? ` · ${model.source} → ${model.target}` : "";
  element("about").textContent = model ? `${model.kind} · ${inMillions(model.parameters)}${languages}` : "";
  element("ask").hidden = !open.reads || !model?.sections.includes("translate");
  document.title = `regard · ${words.sections[open.id]}`;
}

function inMillions(count) {
  return count < 1e6 ? `${(count / 1e3).toFixed(0)} k` : `${(count / 1e6).toFixed(1)} M`;
}

function tellProblem(sentence) {
  element("problem").textContent = sentence;
  element("problem").hidden = !sentence;
  if (sentence) element("problem").scrollIntoView({ block: "nearest" });
}

/** Says what went wrong, unless somebody has left meanwhile, and asks for a key where one is missing; null: nothing. */
function tellError(error) {
  if (error?.name === "AbortError") return;
  tellProblem(error?.message ?? "");
  if (!error?.locked) return;
  element("unlock").hidden = false;
  element("key").focus();
}

function choose(section) {
  open = section;
  history.replaceState(null, "", `#${section.id}`);
  show();
}

/** The section that the address names, if it is one of ours. */
function namedSection() {
  return SECTIONS.find((section) => section.id === location.hash.slice(1));
}

/** Keeps the sentence and the model for as long as the tab is open. */
function remember() {
  sessionStorage.setItem("text", page.text);
  if (page.model) sessionStorage.setItem("model", page.model.name);
}

function buildTabs() {
  for (const section of SECTIONS) {
    const tab = make("button", { role: "tab", "data-section": section.id, on: { click: () => choose(section) } });
    tab.setAttribute("aria-controls", "panel");
    element("tabs").append(tab);
  }
  element("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (SECTIONS.indexOf(open) + step + SECTIONS.length) % SECTIONS.length;
    choose(SECTIONS[next]);
    element("tabs").children[next].focus();
  });
}

function listen() {
  const submit = () => {
    if (element("text").value !== page.text) show();
  };
  const typed = calmly(() => open === translate && submit(), 600);
  element("text").addEventListener("input", typed);
  element("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  element("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  element("unlock").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(element("key").value);
    element("unlock").hidden = true;
    show();
  });
  element("model").addEventListener("change", () => {
    page.model = page.models.find((model) => model.name === element("model").value);
    choose(whyNot(open) ? firstSection() : open);
  });
  element("language").addEventListener("click", () => {
    page.language = page.language === "zh" ? "en" : "zh";
    page.words = phrasesOf(page.language);
    show();
  });
  watchTheme(element("theme"), show);
  addEventListener("hashchange", () => {
    const section = namedSection();
    if (section && section !== open) choose(section);
  });
  for (const name of ["dragover", "drop"]) {
    // A file dropped beside its place would be opened instead of this page.
    document.addEventListener(name, (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  }
  let width = innerWidth;
  addEventListener("resize", calmly(() => innerWidth !== width && ((width = innerWidth), show()), 200));
}

/** The section to begin with: what this model is for, or else the first that it can fill. */
function firstSection() {
  return [translate, image, ...SECTIONS].find((section) => !whyNot(section)) ?? translate;
}

/** The models, once they are loaded. */
async function waitForModels() {
  for (;;) {
    const { models } = await ask("models");
    if (models.length) return models;
    tellProblem(page.words.loading);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

async function start() {
  buildTabs();
  listen();
  mark();
  element("text").value = sessionStorage.getItem("text") || page.text;
  page.models = await waitForModels();
  page.model = page.models.find(({ name }) => name === sessionStorage.getItem("model")) ?? page.models[0];
  for (const { name } of page.models) element("model").append(make("option", { value: name, text: name }));
  element("model").value = page.model.name;
  open = namedSection() ?? firstSection();
  await show();
}

start().catch(tellError);
