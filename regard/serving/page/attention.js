// Section "attention": thumbnails of all heads, the selected head, and further heads or models for comparison.

import { choice, initialState, integer, number, text, toggle } from "./address.js";
import { colourOf, makeScale } from "./colours.js";
import { create, createButton, createField, createSelect } from "./dom.js";
import { HeadGrid } from "./grid.js";
import { colourOfHead } from "./head_colours.js";
import { HeadPanel } from "./head_panel.js";
import { defaultView, loadHeads, loadMap, loadOtherHeads, subtractMaps } from "./heads.js";
import { isDark } from "./theme.js";

const GROUPS = ["cross", "decoder", "encoder", "patches"];
/**
 * The selection, kept when the section is closed. A head index equal to the number of heads means their mean; `overlaid` are
 * heads to show in colour; `patch` selects the window of an image model with windows.
 */
const parameters = {
  name: text(),
  head: integer(0, 0, 999),
  quantity: choice(["weights", "scores"], "weights"),
  zoom: number(1, 0.4, 4),
  words: toggle(true),
  overlaid: headList(),
  comparisons: comparisonList(),
  patch: integer(0, 0, 9999),
};
const state = initialState(parameters);

export const section = { id: "attention", requires: ["attention"], readsText: true, show, parameters, state };

/** Heads in the address, separated by commas. */
function headList() {
  const read = (value) => (/^(\d{1,3},){0,99}\d{1,3}$/.test(value) ? value.split(",").map(Number) : undefined);
  return { initial: [], read, write: (heads) => heads.join(",") };
}

/** Compared heads in the address: "model attention head show", separated by commas; parts are escaped. */
function comparisonList() {
  const write = (list) =>
    list.map(({ model, name, head, show: kind }) => [model, name, head, kind].map(encodeURIComponent).join(" ")).join(",");
  const read = (value) => {
    const items = value.split(",").filter(Boolean).map((item) => item.split(" "));
    const isValid = (item) => item.length === 4 && /^\d{1,3}$/.test(item[2]) && ["map", "difference"].includes(item[3]);
    if (items.length > 8 || !items.every(isValid)) return undefined;
    try {
      return items.map(([model, name, head, kind]) =>
        ({ model: decodeURIComponent(model), name: decodeURIComponent(name), head: Number(head), show: kind }));
    } catch {
      return undefined;
    }
  };
  return { initial: [], read, write };
}

async function show(container, page, signal) {
  const load = () => loadHeads(page.model.name, page.sentence, signal);
  const section = new AttentionSection(page, signal, { section: "attention", load });
  container.append(section.element);
  await section.load();
}

/** All heads of a model; `source` is {section, load}: the section that other models must support, and the heads. */
export class AttentionSection {
  constructor(page, signal, source) {
    Object.assign(this, { page, signal, source, strings: page.strings });
    this.overview = create("section", { class: "card overview" });
    this.panel = new HeadPanel(this.strings);
    this.comparisons = create("div", { class: "comparisons" });
    this.detail = create("section", { class: "card detail" },
      this.createControls(),
      create("div", { class: "side-by-side" }, this.panel.element, this.comparisons));
    this.element = create("div", { class: "attention" }, this.overview, this.detail);
  }

  async load() {
    const heads = await this.source.load();
    if (this.signal.aborted) return;
    this.heads = heads;
    if (!heads.views.some((view) => view.name === state.name)) {
      if (state.name) this.page.addNotice(this.strings.unknownName(state.name));
      Object.assign(state, { name: defaultView(heads.views).name, head: 0 });
    }
    const { heads: count } = heads.views.find((view) => view.name === state.name);
    state.head = this.page.limit(this.strings.headField, state.head, count + 1);
    const groups = GROUPS.map((name) => ({
      title: this.strings[name],
      hint: this.strings[`${name}Hint`],
      views: heads.views.filter((view) => view.group === name),
    })).filter((group) => group.views.length);
    this.grid = new HeadGrid(this.overview, groups, this.strings, (view, head) => this.select(view, head));
    this.grid.refresh((view) => heads.maps.get(view.name), (map) => makeScale(isDark(), map.signed));
    await this.drawAll();
  }

  select(view, head) {
    Object.assign(state, { name: view.name, head });
    this.page.saveView();
    if (matchMedia("(max-width: 900px)").matches) this.detail.scrollIntoView({ behavior: "smooth" });
    const hasDifference = state.comparisons.some(({ show }) => show === "difference");
    return (hasDifference ? this.drawAll() : this.drawSelected()).catch((error) => this.page.showError(error));
  }

  createControls() {
    const { strings } = this;
    const quantities = [["weights", strings.weights], ["scores", strings.scores]];
    this.quantitySelect = createSelect(quantities, state.quantity, (quantity) => this.redraw({ quantity }));
    const zoom = (factor) => this.redraw({ zoom: Math.min(4, Math.max(0.4, state.zoom * factor)) });
    const words = create("input", { type: "checkbox" });
    words.checked = state.words;
    words.addEventListener("change", () => this.redraw({ words: words.checked }));
    this.wordsField = create("label", { class: "field" }, words, create("span", { text: strings.joinPieces }));
    this.overlayButtons = create("div", { class: "field swatches", role: "group", "aria-label": strings.inColour });
    return create("div", { class: "bar controls" },
      createField(strings.show, this.quantitySelect),
      this.wordsField,
      createButton(strings.compare, () => this.addComparison(), { class: "tool compare" }),
      createButton("−", () => zoom(0.8), { "aria-label": strings.zoomOut }),
      createButton("+", () => zoom(1.25), { "aria-label": strings.zoomIn }),
      this.overlayButtons);
  }

  redraw(changes = {}) {
    Object.assign(state, changes);
    this.page.saveView({ replace: "zoom" in changes });
    return this.drawAll().catch((error) => this.page.showError(error));
  }

  async drawAll() {
    const containers = state.comparisons.map(() => create("div"));
    this.comparisons.replaceChildren(...containers);
    this.element.classList.toggle("comparing", containers.length > 0);
    const comparisons = containers.map((container, i) => this.drawComparison(container, state.comparisons[i]));
    await Promise.all([this.drawSelected(), ...comparisons]);
  }

  /** Draw the selected head, and the differences from it. */
  async drawSelected() {
    const view = this.heads.views.find(({ name }) => name === state.name);
    this.grid.select(view, state.head);
    const isMean = state.head === view.heads;
    const { title, facts, options } = describeHead(this.heads, view, state.head, this.strings);
    this.quantitySelect.value = options.quantity;
    this.quantitySelect.options[1].disabled = isMean || options.overlaid.length > 0; // their mean is not meaningful
    this.createOverlayButtons(view);
    const selected = loadMap(this.heads, view, state.head, options, this.signal);
    this.selected = { title, data: selected };
    const data = await selected;
    if (this.signal.aborted) return;
    this.wordsField.hidden = !data.hasPieces;
    this.panel.show(title, [...facts, this.strings.axes].join(" · "), data, state.zoom);
  }

  /** Create a button for each head that shows it in colour, together with other heads. */
  createOverlayButtons(view) {
    const { strings } = this;
    const switchHead = (head) => {
      const others = state.overlaid.filter((other) => other !== head);
      const overlaid = others.length < state.overlaid.length ? others : [...others, head].sort((a, b) => a - b);
      this.redraw({ overlaid });
    };
    const every = Array.from({ length: view.heads }, (_, head) => head);
    const buttons = every.map((head) => createButton(String(head), () => switchHead(head), {
      class: "tool swatch", "aria-pressed": String(state.overlaid.includes(head)), "aria-label": `${strings.head} ${head}`,
    }));
    buttons.forEach((button, head) => button.style.setProperty("--swatch", colourOfHead(head)));
    const allOrNone = state.overlaid.length ? [strings.noHeads, []] : [strings.allHeads, every];
    const focused = [...this.overlayButtons.children].indexOf(document.activeElement);
    this.overlayButtons.replaceChildren(
      create("span", { text: strings.inColour }), ...buttons,
      createButton(allOrNone[0], () => this.redraw({ overlaid: allOrNone[1] })));
    this.overlayButtons.children[focused]?.focus();
  }

  /** Compare with another model if there is one, or else with another head of the same model. */
  addComparison() {
    const { models, model } = this.page;
    const used = [model.name, ...state.comparisons.map((comparison) => comparison.model)];
    const unused = models.find(({ name, sections }) => sections.includes(this.source.section) && !used.includes(name));
    const head = unused ? state.head : state.comparisons.length + 1;
    state.comparisons.push({ model: (unused ?? model).name, name: state.name, head, show: "map" });
    this.redraw();
  }

  async drawComparison(container, comparison) {
    const { page, strings, signal } = this;
    const model = page.models.find(({ name }) => name === comparison.model) ?? page.model;
    const change = (values) => {
      Object.assign(comparison, values);
      page.saveView();
      return this.drawComparison(container, comparison).catch((error) => page.showError(error));
    };
    const remove = () => {
      state.comparisons.splice(state.comparisons.indexOf(comparison), 1);
      container.remove();
      this.element.classList.toggle("comparing", state.comparisons.length > 0);
      page.saveView();
      this.drawSelected().catch((error) => page.showError(error)); // in the larger space
    };
    const supported = page.models.filter(({ sections }) => sections.includes(this.source.section)).map(({ name }) => [name, name]);
    const removeButton = createButton("✕", remove, { "aria-label": strings.remove });
    const modelSelect = createSelect(supported, model.name, (name) => change({ model: name }));
    const bar = create("div", { class: "bar controls" }, createField(strings.model, modelSelect), removeButton);
    if (!container.firstChild) container.append(bar);
    let heads;
    try {
      heads = await loadOtherHeads(this.heads, model.name, signal);
    } catch (error) {
      const message = create("p", { class: "error", text: `${model.name}: ${error.message}` });
      if (!signal.aborted) container.replaceChildren(bar, message);
      return;
    }
    if (signal.aborted) return;
    const view = heads.views.find(({ name }) => name === comparison.name) ?? heads.views.at(-1);
    Object.assign(comparison, { model: model.name, name: view.name, head: Math.min(comparison.head, view.heads) });
    const names = heads.views.map(({ name }) => [name, name]);
    const headOptions = Array.from({ length: view.heads + 1 }, (_, i) => [i, i === view.heads ? strings.mean : i]);
    const kinds = [["map", strings.map], ["difference", strings.difference]];
    removeButton.before(
      createField(strings.attention, createSelect(names, view.name, (name) => change({ name }))),
      createField(strings.headField, createSelect(headOptions, comparison.head, (head) => change({ head: Number(head) }))),
      createField(strings.show, createSelect(kinds, comparison.show, (kind) => change({ show: kind }))));
    const panel = new HeadPanel(strings);
    container.replaceChildren(bar, create("p", { class: "hint", text: heads.translation ?? "" }), panel.element);
    await this.showComparison(panel, heads, view, comparison);
  }

  async showComparison(panel, heads, view, { head, show }) {
    const { strings, signal } = this;
    const { title, facts, options } = describeHead(heads, view, head, strings);
    const data = await loadMap(heads, view, head, options, signal);
    if (signal.aborted) return;
    if (show === "map") {
      panel.show(title, [...facts, strings.axes].join(" · "), data, state.zoom);
      return;
    }
    const selected = await this.selected.data;
    const map = subtractMaps(data, selected);
    if (map) {
      const layers = splitSigns(map);
      panel.show(`${title} − ${this.selected.title}`, strings.differenceHint, { ...data, map, weights: map, layers }, state.zoom);
    } else panel.show(title, strings.noDifference, data, state.zoom);
  }
}

/** Return the positive and the negative part of a difference as layers with the strongest colours of its scale. */
function splitSigns(map) {
  const scale = makeScale(isDark(), true);
  const part = (sign) => ({ ...map, values: map.values.map((value) => Math.max(0, sign * value)) });
  return [{ map: part(1), colour: colourOf(scale, 0.9) }, { map: part(-1), colour: colourOf(scale, 0.1) }];
}

/** Return the title and the facts of a head. */
function describeHead({ model }, view, head, strings) {
  const isMean = head === view.heads;
  const overlaid = state.overlaid.filter((number) => number < view.heads);
  const quantity = isMean || overlaid.length ? "weights" : state.quantity;
  const facts = [strings[quantity]];
  if (!overlaid.length && !isMean && view.entropy) facts.push(strings.entropy(view.entropy[head].toFixed(1)));
  if (!overlaid.length && !isMean && view.distance) facts.push(strings.distance(view.distance[head].toFixed(1)));
  const names = overlaid.length ? `${strings.heads} ${overlaid.join(", ")}` : isMean ? strings.mean : `${strings.head} ${head}`;
  return { title: `${model} · ${view.name} · ${names}`, facts, options: { quantity, overlaid, words: state.words } };
}
