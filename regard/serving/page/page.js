// The page: a model, a sentence, and tabs for the sections. Only the open section sends requests.

import { choice, formatAddress, initialState, integer, parseAddress, readState, text as textParameter } from "./address.js";
import { request, setApiKey, setErrorStrings } from "./api.js";
import { create, debounce } from "./dom.js";
import { EXAMPLES } from "./image_examples.js";
import { OWN_IMAGE, selectExample, selectedImage } from "./image_files.js";
import { pageStringsFor } from "./page_strings.js";
import { showProgress } from "./progress.js";
import { FIRST_SECTIONS, SECTIONS } from "./sections.js";
import { SentenceChooser, WHOLE } from "./sentence_chooser.js";
import { showSideBySide } from "./side_by_side.js";
import { initialLanguage, switchLanguage } from "./strings.js";
import { watchTheme } from "./theme.js";
import { fillToolbar } from "./toolbar.js";
import { STOPS, modelOfStop, showStop } from "./tour.js";

const DEFAULT_TEXT = "I love apples";
/** Parts of the address that all sections share. */
const PARAMETERS = {
  model: textParameter(),
  second: textParameter(),
  text: textParameter(DEFAULT_TEXT),
  sentence: integer(0, WHOLE, 9999),
  tour: integer(null, 1, STOPS.length),
  image: choice([...EXAMPLES, OWN_IMAGE]),
};
const ALWAYS = ["model", "text"];
const element = (id) => document.getElementById(id);

/** State and functions that the sections share. The sections inspect `sentence`, a sentence of `text`. */
const page = {
  /** Whether the state comes from an address that was just opened. */
  get isLinked() {
    return isLinked;
  },
  /** Whether the state of the section was given with the request to show it. */
  get isStateGiven() {
    return isStateGiven;
  },
  models: [],
  model: null,
  /** The model that is shown beside `model`, or null. */
  second: null,
  /** Whether this is the page of the second model; sections keep their state for the first one. */
  isSecond: false,
  text: DEFAULT_TEXT,
  sentence: "",
  language: initialLanguage(),
  strings: pageStringsFor(initialLanguage()),
  reload: () => show(),
  open: (id, values = {}) => openById(id, values),
  saveView: (options) => saveView(options),
  addNotice: (message) => isLinked && addNotice(message),
  limit: (label, value, count) => limit(label, value, count),
  showError: (error) => showError(error),
};
let openSection = SECTIONS[0];
const chooser = new SentenceChooser(element("sentences"), () => {
  saveView();
  show();
});
let openRequests = new AbortController();
/** The last address that was written or read. */
let shownAddress = null;
/** Whether the values of the state come from an address and have not been checked yet. */
let isLinked = false;
let isStateGiven = false;
/** Example image of the address, or OWN_IMAGE. */
let linkedImage = null;
/** Shown stop of the guided tour, counted from 1; null if it is closed. */
let tourStop = null;
let shownStop = Promise.resolve();
/** Whether the server has no model for the shown stop, so that there is nothing to show but its text. */
let isStopMissing = false;
/** States of the sections before the tour, by id; null if it is closed. */
let statesBeforeTour = null;

/** Show the open section again, and cancel requests of the previous one. */
async function show() {
  openRequests.abort();
  openRequests = new AbortController();
  const { signal } = openRequests;
  document.documentElement.removeAttribute("data-ready");
  page.text = element("text").value;
  updateFrame();
  const container = create("div", { class: `section section-${openSection.id}` });
  element("panel").replaceChildren(container);
  showMessage("");
  try {
    if (!isStopMissing) await showSection(container, signal);
  } catch (error) {
    if (signal.aborted) return;
    showError(error);
  }
  if (signal.aborted) return;
  saveView({ replace: true });
  isLinked = isStateGiven = false;
  document.documentElement.dataset.ready = openSection.id;
}

/** Show the open section, or why the model does not support it. */
async function showSection(container, signal) {
  const isText = openSection.readsText && page.model.sections.includes("translate");
  const reason = (page.second ? "" : whyUnavailable(openSection)) || (isText && !page.text.trim() ? page.strings.blank : "");
  if (reason) {
    container.append(create("p", { class: "card unavailable", text: reason }));
    return;
  }
  if (isText) page.sentence = await chooser.show(page, signal);
  else await selectLinkedImage();
  const prose = page.strings.prose[openSection.id]?.(page.model);
  if (prose) container.append(create("p", { class: "prose", text: prose }));
  if (!signal.aborted) await showModels(container, signal);
}

/** Show the open section for the model, or for both models. */
async function showModels(container, signal) {
  if (!page.second) {
    await openSection.show(container, page, signal);
    return;
  }
  const other = Object.create(page, { model: { value: page.second }, isSecond: { value: true } });
  const reasonOf = (model) => whyUnavailable(openSection, model);
  await showSideBySide(container, [page, other], openSection, reasonOf, signal);
}

/** Select the example image that the address names. A user's own image is not part of an address. */
async function selectLinkedImage() {
  const image = linkedImage;
  linkedImage = null;
  if (image === OWN_IMAGE && selectedImage(page.model) !== OWN_IMAGE) addNotice(page.strings.ownImage);
  const isPair = page.model.sections.includes("views");
  const current = selectedImage(page.model);
  const example = image && image !== OWN_IMAGE ? image : current;
  if (EXAMPLES.includes(example)) await selectExample(example, isPair); // also if a second view is needed now
}

/** Return why the model does not support a section, or an empty string if it does. */
function whyUnavailable({ requires }, model = page.model) {
  const { strings } = page;
  if (!model) return strings.noModel;
  if (requires.some((name) => model.sections.includes(name))) return "";
  if (model.kind === "run") return strings.noModelYet(model.name);
  if (requires.includes("training")) return strings.noLog(model.name);
  if (model.engine !== "regard" && !requires.includes("image")) return strings.noInspection(model.name, model.engine);
  if (model.lacks) return strings.noTokenizer(model.name);
  if (model.sections.includes("views")) return strings.isTwoView(model.name);
  return model.sections.includes("image") ? strings.isClassifier(model.name) : strings.isTextModel(model.name);
}

/** Update everything outside of the section: texts, tabs, and the description of the model. */
function updateFrame() {
  const { strings, model } = page;
  setErrorStrings(strings);
  document.documentElement.lang = page.language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = strings[node.dataset.text];
  for (const node of document.querySelectorAll("[data-name]")) node.setAttribute("aria-label", strings[node.dataset.name]);
  for (const node of document.querySelectorAll("[data-label]")) {
    node.setAttribute("aria-label", strings[node.dataset.label]);
    node.title = strings[node.dataset.label];
  }
  for (const tab of element("tabs").children) {
    const isOpen = tab.dataset.section === openSection.id;
    tab.textContent = sectionTitle(tab.dataset.section);
    tab.setAttribute("aria-selected", String(isOpen));
    tab.tabIndex = isOpen ? 0 : -1;
    explainTab(tab);
    if (isOpen) element("panel").setAttribute("aria-labelledby", tab.id);
    if (isOpen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const isTextRead = openSection.readsText && model?.sections.includes("translate");
  fillToolbar(element("toolbar"), element("panel"), page, () => goToStop(1), isTextRead ? enterText : null);
  if (model) shownStop = showStop(element("tour"), tourStop, page, openSection.id, goToStop).catch(showError);
  const languages = model?.source ? ` · ${model.source} → ${model.target}` : "";
  element("about").textContent = model ? `${model.kind} · ${formatCount(model.parameters)}${languages}` : "";
  element("sentences").hidden = true;
  element("prompt").hidden = !isTextRead;
  document.title = `regard · ${sectionTitle(openSection.id)}`;
}

/** Return the title of a section; a non-autoregressive model has iterations instead of a beam search. */
function sectionTitle(id) {
  const { strings, model } = page;
  return id === "beam" && model?.kind === "nat" ? strings.iterationsSection : strings.sections[id];
}

/** Mark the tab of a section that the model does not support, and say why; opening it shows the reason too. */
function explainTab(tab) {
  const reason = page.model ? whyUnavailable(SECTIONS.find(({ id }) => id === tab.dataset.section)) : "";
  tab.title = reason;
  tab.classList.toggle("unsupported", Boolean(reason));
  if (reason) tab.setAttribute("aria-description", reason);
  else tab.removeAttribute("aria-description");
}

function formatCount(count) {
  return count < 1e6 ? `${(count / 1e3).toFixed(0)} k` : `${(count / 1e6).toFixed(1)} M`;
}

function showMessage(message) {
  element("error").textContent = message;
  element("error").hidden = !message;
  if (message) element("error").scrollIntoView({ block: "nearest" });
}

/** Show an error, or clear it if the error is null. Ask for an API key if one is needed. Ignore cancelled requests. */
function showError(error) {
  if (error?.name === "AbortError") return;
  showMessage(error?.message ?? "");
  if (!error?.needsKey) return;
  element("unlock").hidden = false;
  element("key").focus();
}

/** Open a section. `values` change its state. With `isEmpty`, show only that it is open. */
function open(section, values = {}, isEmpty = false) {
  openSection = section;
  isStopMissing = isEmpty;
  Object.assign(section.state ?? {}, values);
  isStateGiven = Object.keys(values).length > 0;
  page.text = element("text").value;
  showNotice("");
  saveView();
  show();
}

/** Open a section by its id. */
function openById(id, values, isEmpty) {
  const section = SECTIONS.find((one) => one.id === id);
  if (section) open(section, values, isEmpty);
}

/** Open a stop of the guided tour, with a model that suits it and initial settings; null ends the tour. */
function goToStop(number) {
  tourStop = number;
  if (number === null) {
    endTour();
    return;
  }
  statesBeforeTour ??= copyStates();
  resetStates();
  const stop = STOPS[number - 1];
  const model = modelOfStop(stop, page);
  page.model = model ?? page.model;
  element("model").value = page.model.name;
  if (!element("text").value.trim()) element("text").value = DEFAULT_TEXT;
  if (!selectedImage(page.model)) [linkedImage] = EXAMPLES;
  openById(stop.section, stop.state, !model);
  shownStop.then(() => element("tour").querySelector(".primary")?.focus({ preventScroll: true }));
}

/** Close the tour; the shown view stays. */
function endTour() {
  restoreStates();
  if (isStopMissing) {
    open(whyUnavailable(openSection) ? defaultSection() : openSection);
    return;
  }
  saveView();
  updateFrame();
}

/** Give the sections, except the open one, the settings that they had before the tour. */
function restoreStates() {
  if (statesBeforeTour) resetStates(statesBeforeTour, openSection);
  statesBeforeTour = null;
}

function copyStates() {
  return Object.fromEntries(SECTIONS.map(({ id, state = {} }) => [id, structuredClone(state)]));
}

/** Set the states of all sections but one to `states`, by id, or else to their initial values. */
function resetStates(states = {}, except = null) {
  for (const section of SECTIONS) {
    if (section !== except) Object.assign(section.state ?? {}, states[section.id] ?? initialState(section.parameters ?? {}));
  }
}

/** Write the view to the address: as a new entry of the history, or, with `replace`, in place of the current one. */
function saveView({ replace = false } = {}) {
  if (!page.model) return;
  const sentence = chooser.indexIn(page.text);
  const shared = { model: page.model.name, second: page.second?.name, text: page.text, sentence, tour: tourStop, image: selectedImage(page.model) };
  const { parameters = {}, state = {} } = openSection;
  const address = formatAddress(openSection.id, [[PARAMETERS, shared], [parameters, state]], ALWAYS);
  if (address === shownAddress) return;
  shownAddress = address;
  try {
    history[replace ? "replaceState" : "pushState"](null, "", address);
  } catch {
    // Browsers limit the length of addresses and the number of changes; the page works without them.
  }
}

/** Set the state to that of the address. Values that the address does not name keep their values in a bare #SECTION. */
function readAddress() {
  const { section: id, values } = parseAddress(location.hash);
  const problems = [];
  const section = SECTIONS.find((one) => one.id === id);
  if (id && !section) problems.push(page.strings.unknownSection(id));
  openSection = section ?? defaultSection();
  shownAddress = location.hash;
  showNotice("");
  isLinked = isStateGiven = Boolean(values);
  isStopMissing = false;
  if (values) {
    const shared = {};
    const { parameters = {}, state = {} } = openSection;
    const invalid = [...readState(PARAMETERS, shared, values), ...readState(parameters, state, values)];
    problems.push(...invalid.map(([key, value]) => page.strings.invalidValue(key, value.slice(0, 40))));
    const model = page.models.find(({ name }) => name === shared.model);
    if (shared.model !== null && !model) problems.push(page.strings.unknownModel(shared.model.slice(0, 80), page.model.name));
    page.model = model ?? page.model;
    element("model").value = page.model.name;
    selectSecond(shared.second);
    element("text").value = shared.text;
    chooser.choose(element("text").value, shared.sentence);
    linkedImage = shared.image;
    tourStop = shared.tour;
    if (tourStop === null) restoreStates();
    if (!section) openSection = defaultSection();
    const stop = STOPS[tourStop - 1];
    isStopMissing = stop?.section === openSection.id && !modelOfStop(stop, page);
  }
  showNotice(problems.join(" "));
}

/** Show a model beside the first one; without a name, or with that of the first one, show only this. */
function selectSecond(name) {
  page.second = page.models.find((model) => model.name === name && model !== page.model) ?? null;
  element("second").value = page.second?.name ?? "";
}

/** Limit an index to 0 … count - 1. If it was stated in a link, say that it is too large. */
function limit(label, value, count) {
  const limited = Math.min(value, count - 1);
  if (isLinked && limited < value) addNotice(page.strings.outOfRange(label, value, count - 1));
  return limited;
}

function showNotice(message) {
  element("notice").textContent = message;
  element("notice").hidden = !message;
}

function addNotice(message) {
  showNotice([element("notice").textContent, message].filter(Boolean).join(" "));
}

function createTabs() {
  for (const section of SECTIONS) {
    const tab = create("button", { role: "tab", id: `tab-${section.id}`, "data-section": section.id, on: { click: () => open(section) } });
    tab.setAttribute("aria-controls", "panel");
    element("tabs").append(tab);
  }
  element("tabs").addEventListener("keydown", (event) => {
    const count = SECTIONS.length;
    const current = SECTIONS.indexOf(openSection);
    const next = { ArrowRight: (current + 1) % count, ArrowLeft: (current + count - 1) % count, Home: 0, End: count - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    open(SECTIONS[next]);
    element("tabs").children[next].focus();
  });
}

function enterText(text) {
  element("text").value = text;
  element("prompt").requestSubmit();
}

function listenToPrompt() {
  const submit = () => { // also an unchanged text, to try again after an error
    page.text = element("text").value;
    showNotice("");
    saveView();
    show();
  };
  const submitChanged = () => openSection.id === "translate" && element("text").value !== page.text && submit();
  element("text").addEventListener("input", debounce(submitChanged, 600));
  element("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  element("prompt").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  element("unlock").addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey(element("key").value);
    element("unlock").hidden = true;
    show();
  });
}

function listenToControls() {
  element("model").addEventListener("change", () => {
    page.model = page.models.find((model) => model.name === element("model").value);
    selectSecond(page.second?.name);
    open(whyUnavailable(openSection) ? defaultSection() : openSection);
  });
  element("second").addEventListener("change", () => {
    selectSecond(element("second").value);
    open(openSection);
  });
  element("language").addEventListener("click", () => {
    page.language = switchLanguage(page.language);
    page.strings = pageStringsFor(page.language);
    show();
  });
  watchTheme(element("theme"), show);
  for (const name of ["popstate", "hashchange"]) {
    addEventListener(name, () => {
      if (!page.model || location.hash === shownAddress) return;
      readAddress();
      show();
    });
  }
  for (const name of ["dragover", "drop"]) {
    // Without this, a file dropped outside of a drop zone would replace the page.
    document.addEventListener(name, (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  }
  let width = innerWidth;
  addEventListener("resize", debounce(() => {
    if (innerWidth === width) return;
    width = innerWidth;
    show();
  }, 200));
}

/** Return the main section of the model, or else the first that it supports. */
function defaultSection() {
  return [...FIRST_SECTIONS, ...SECTIONS].find((section) => !whyUnavailable(section)) ?? SECTIONS[0];
}

async function waitForModels() {
  for (;;) {
    try {
      return (await request("models")).models;
    } catch (error) {
      if (!error.isLoading) throw error;
    }
    showMessage(page.strings.loading);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

async function start() {
  createTabs();
  listenToPrompt();
  listenToControls();
  showProgress(element("panel"), element("progress"), () => page.strings.computing);
  updateFrame();
  element("text").value = page.text;
  page.models = await waitForModels();
  page.model = page.models[0];
  for (const { name } of page.models) {
    for (const id of ["model", "second"]) element(id).append(create("option", { value: name, text: name }));
  }
  element("second").hidden = page.models.length < 2;
  element("model").value = page.model.name;
  readAddress();
  await show();
}

start().catch(showError);
