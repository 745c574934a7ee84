// Section "change": the translation with scaled heads, another scale of scores, other search settings or another text.

import { factors, initialState, inputWatcher, integer, number, text } from "./address.js";
import { request } from "./api.js";
import { formatNumber } from "./description.js";
import { create, createButton, createField, createSelect, createSlider, debounce, numberOptions } from "./dom.js";
import { biases, ScoreBias } from "./score_bias.js";

/**
 * The changes. Null means the setting of the server, or the unchanged sentence. `factors` are {attention: {head: factor}};
 * `factor` is applied to the head that is clicked next.
 */
const parameters = {
  sharpness: number(1, 0.1, 3),
  temperature: number(0, 0, 3),
  seed: integer(0, 0, 2 ** 31),
  beam: integer(null, 1, 16),
  alpha: number(null, 0, 10),
  factor: number(0, -10, 10),
  factors: factors(),
  bias: biases(),
  changed: text(),
};
const state = initialState(parameters);
const watchInput = inputWatcher();

export const section = { id: "change", requires: ["change"], readsText: true, show, parameters, state };

async function show(container, page, signal) {
  const { strings, model } = page;
  const { isOtherModel, isOtherInput } = watchInput(page);
  if (isOtherModel) Object.assign(state, { factors: {}, beam: null, alpha: null });
  if (isOtherInput) Object.assign(state, { changed: null, bias: {} });
  const results = create("section", { class: "card" }, create("h2", { text: strings.changeTitle }));
  const controls = create("section", { class: "card" });
  container.append(results, controls);
  const body = { model: model.name, text: page.sentence };
  const { translation: original, heads } = await request("inspect/change", body, signal);
  if (signal.aborted) return;
  dropUnknownHeads(heads, page);
  const originalLine = createLine(strings.original, strings);
  const changedLine = createLine(strings.changed, strings);
  const summary = create("p", { class: "readout", "aria-live": "polite" });
  originalLine.show(original);
  results.append(originalLine.element, changedLine.element, summary);

  const scoreBias = new ScoreBias(strings, (bias) => change({ bias }));
  let latestRequest = 0;
  const draw = async () => {
    const number = ++latestRequest;
    if (!(state.changed ?? page.sentence).trim()) {
      page.showError(new Error(strings.blank));
      return;
    }
    try {
      const { translation, source } = await request("inspect/change", createRequest(page, heads), signal);
      if (number !== latestRequest || signal.aborted) return;
      page.showError(null);
      scoreBias.show(source, state.bias);
      const removed = originalLine.show(original, translation.labels, "del");
      const added = changedLine.show(translation, original.labels, "ins");
      summary.textContent = removed + added ? strings.changes(removed, added) : "";
    } catch (error) {
      if (number === latestRequest) page.showError(error);
    }
  };
  const drawSoon = debounce(draw, 200);
  const change = (values) => {
    Object.assign(state, values);
    if (state.changed === page.sentence) state.changed = null;
    page.saveView({ replace: true });
    drawSoon();
  };
  const reset = () => {
    Object.assign(state, initialState(parameters));
    page.saveView();
    page.reload();
  };
  controls.append(
    create("h2", { text: strings.editText }),
    createTextEditor(page, change),
    create("h2", { text: strings.heads }),
    create("p", { class: "hint", text: strings.headsHint }),
    createHeadControls(strings, reset),
    createHeadTable(heads, strings, () => {
      page.saveView();
      drawSoon();
    }),
    scoreBias.element,
    create("h2", { text: strings.search }),
    createSearchControls(model, strings, change));
  await draw();
}

/** Return the body of the request for the changed translation; the model may lack heads of the one beside it. */
function createRequest({ model, sentence }, heads) {
  const { changed, sharpness, temperature, seed, beam, alpha } = state;
  let search = {};
  if (model.kind !== "nat") search = temperature ? { temperature, seed, alpha } : { beam, alpha };
  const keep = ([head], count) => Number(head) < (count ?? 0);
  const factors = Object.fromEntries(Object.entries(state.factors).map(([name, ofHeads]) =>
    [name, Object.fromEntries(Object.entries(ofHeads).filter((item) => keep(item, heads[name])))]).filter(([name]) => heads[name]));
  return { model: model.name, text: changed ?? sentence, factors, sharpness, bias: state.bias, search };
}

/** Return the state for another module, which shows changes of image models; initially without those of another model. */
export function stateOfChanges(page) {
  if (watchInput(page).isOtherModel) Object.assign(state, initialState(parameters));
  return state;
}

/** Forget all changes. */
export function resetChanges() {
  Object.assign(state, initialState(parameters));
}

/** Remove factors of heads that the model does not have; they may come from a link. */
function dropUnknownHeads(heads, page) {
  if (page.isSecond) return; // the factors are those of the first model
  for (const [name, factorsOfHeads] of Object.entries(state.factors)) {
    for (const head of Object.keys(factorsOfHeads)) {
      if (Number(head) < (heads[name] ?? 0)) continue;
      page.addNotice(page.strings.unknownName(`${name}/${head}`));
      delete factorsOfHeads[head];
    }
    if (!Object.keys(factorsOfHeads).length) delete state.factors[name];
  }
}

function createTextEditor({ strings, sentence }, change) {
  const editor = create("textarea", { rows: 2, maxlength: 10000, "aria-label": strings.editText, spellcheck: "false" });
  editor.value = state.changed ?? sentence;
  editor.addEventListener("input", () => change({ changed: editor.value, bias: {} }));
  return editor;
}

const formatFactor = (value) => `× ${value}`;

/** Create the factor that a click on a head applies, and a button to undo all changes. */
export function createHeadControls(strings, reset) {
  const setFactor = (factor) => {
    state.factor = factor;
  };
  const slider = createSlider({ min: 0, max: 3, step: 0.25, value: state.factor }, setFactor, formatFactor);
  return create("div", { class: "bar controls" },
    createField(strings.factor, slider),
    createButton(strings.reset, reset));
}

function createSearchControls(model, strings, change) {
  const controls = create("div", { class: "bar controls" });
  const addSlider = (label, range, name, format) => {
    controls.append(createField(label, createSlider(range, (value) => change({ [name]: value }), format)));
  };
  addSlider(strings.sharpness, { min: 0.1, max: 3, step: 0.1, value: state.sharpness }, "sharpness", formatFactor);
  if (model.kind === "nat") return controls;
  const { beam: serverBeam, alpha: serverAlpha, length_penalty: penalty } = model.search;
  const beam = state.beam ?? serverBeam;
  const widths = numberOptions([1, 2, 3, 5, 8], beam);
  controls.append(createField(strings.beam, createSelect(widths, beam, (width) => change({ beam: Number(width) }))));
  if (penalty !== "none") {
    const range = { min: 0, max: Math.max(3, serverAlpha), step: 0.1, value: state.alpha ?? serverAlpha };
    addSlider(strings.alpha, range, "alpha");
  }
  const formatTemperature = (value) => (value ? String(value) : strings.noSampling);
  addSlider(strings.temperature, { min: 0, max: 3, step: 0.1, value: state.temperature }, "temperature", formatTemperature);
  controls.append(createButton(strings.sampleAgain, () => change({ seed: state.seed + 1 })));
  return controls;
}

/**
 * Create a line for a translation. `show(translation, otherLabels, tag)` marks the tokens that are not shared with another
 * translation as inserted or deleted, and returns their number.
 */
function createLine(title, strings) {
  const tokens = create("p", { class: "tokens target" });
  const score = create("span", { class: "hint" });
  const bar = create("div", { class: "bar" }, create("h3", { text: title }), score);
  const element = create("div", { class: "line" }, bar, tokens);
  const show = ({ labels, probabilities, score: value }, otherLabels = labels, tag = "span") => {
    const shared = sharedPositions(labels, otherLabels);
    score.textContent = strings.scoreOf(formatNumber(value));
    tokens.replaceChildren(...labels.map((label, i) => {
      const [name, className] = shared.has(i) ? ["span", "token"] : [tag, "token changed"];
      return create(name, { class: className, text: label, title: `${(100 * probabilities[i]).toFixed(0)}%` });
    }));
    element.classList.toggle("differs", shared.size < labels.length);
    return labels.length - shared.size;
  };
  return { element, show };
}

/** Return the positions in `one` of a longest common subsequence of two lists. */
function sharedPositions(one, other) {
  const lengths = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      lengths[i][j] = one[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const positions = new Set();
  for (let i = 0, j = 0; i < one.length && j < other.length; ) {
    if (one[i] === other[j]) {
      positions.add(i);
      i++;
      j++;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return positions;
}

/** Create a button for each head. A click sets or removes its factor. */
export function createHeadTable(heads, strings, onChange) {
  const rows = Object.entries(heads).map(([name, count]) => {
    const buttons = Array.from({ length: count }, (_, head) => createHeadButton(name, head, strings, onChange));
    return create("div", { class: "row" }, create("span", { class: "layer name", text: name }), ...buttons);
  });
  return create("div", { class: "rows heads" }, ...rows);
}

function createHeadButton(name, head, strings, onChange) {
  const button = create("button", { class: "tool head" });
  const update = () => {
    const factor = state.factors[name]?.[head];
    const isChanged = factor !== undefined;
    button.textContent = isChanged ? `×${factor}` : String(head);
    button.setAttribute("aria-pressed", String(isChanged));
    button.setAttribute("aria-label", `${name}, ${strings.head} ${head}${isChanged ? ` × ${factor}` : ""}`);
  };
  button.addEventListener("click", () => {
    const ofHeads = (state.factors[name] ??= {});
    if (ofHeads[head] === undefined) ofHeads[head] = state.factor;
    else delete ofHeads[head];
    if (!Object.keys(ofHeads).length) delete state.factors[name];
    update();
    onChange();
  });
  update();
  return button;
}
