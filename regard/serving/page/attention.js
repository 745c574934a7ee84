// Section "attention": thumbnails of all heads, the selected head, and further heads or models for comparison.

import { choice, initialState, integer, number, text } from "./address.js";
import { request } from "./api.js";
import { makeScale } from "./colours.js";
import { create, createButton, createField, createSelect } from "./dom.js";
import { HeadGrid } from "./grid.js";
import { HeadPanel } from "./head_panel.js";
import { isDark } from "./theme.js";
import { arrayToMap, getTranslation } from "./translations.js";

const GROUPS = ["cross", "decoder", "encoder"];
/** The selection, kept when the section is closed. A head index equal to the number of heads means their mean. */
const parameters = {
  name: text(),
  head: integer(0, 0, 999),
  quantity: choice(["weights", "scores"], "weights"),
  zoom: number(1, 0.4, 4),
  comparisons: comparisonList(),
};
const state = initialState(parameters);

export const section = { id: "attention", requires: ["attention"], readsText: true, show, parameters, state };

/** Compared heads in the address: "model attention head", separated by commas; parts are escaped. */
function comparisonList() {
  const write = (list) => list.map(({ model, name, head }) => [model, name, head].map(encodeURIComponent).join(" ")).join(",");
  const read = (value) => {
    const items = value.split(",").filter(Boolean).map((item) => item.split(" "));
    if (items.length > 8 || items.some((item) => item.length !== 3 || !/^\d{1,3}$/.test(item[2]))) return undefined;
    try {
      return items.map(([model, name, head]) =>
        ({ model: decodeURIComponent(model), name: decodeURIComponent(name), head: Number(head) }));
    } catch {
      return undefined;
    }
  };
  return { initial: [], read, write };
}

async function show(container, page, signal) {
  const section = new AttentionSection(page, signal);
  container.append(create("div", { class: "attention" }, section.overview, section.detail));
  await section.load();
}

class AttentionSection {
  constructor(page, signal) {
    Object.assign(this, { page, signal, strings: page.strings });
    this.overview = create("section", { class: "card overview" });
    this.panel = new HeadPanel(this.strings);
    this.comparisons = create("div", { class: "comparisons" });
    this.detail = create("section", { class: "card detail" },
      this.createControls(),
      create("div", { class: "side-by-side" }, this.panel.element, this.comparisons));
  }

  async load() {
    const heads = await loadHeads(this.page.model.name, this.page.sentence, this.signal);
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
    return this.drawSelected();
  }

  createControls() {
    const { strings } = this;
    const quantities = [["weights", strings.weights], ["scores", strings.scores]];
    this.quantitySelect = createSelect(quantities, state.quantity, (quantity) => this.redraw({ quantity }));
    const zoom = (factor) => this.redraw({ zoom: Math.min(4, Math.max(0.4, state.zoom * factor)) });
    return create("div", { class: "bar controls" },
      createField(strings.show, this.quantitySelect),
      createButton(strings.compare, () => this.addComparison(), { class: "tool compare" }),
      createButton("−", () => zoom(0.8), { "aria-label": strings.zoomOut }),
      createButton("+", () => zoom(1.25), { "aria-label": strings.zoomIn }));
  }

  redraw(changes = {}) {
    Object.assign(state, changes);
    this.page.saveView({ replace: "zoom" in changes });
    return this.drawAll().catch((error) => this.page.showError(error));
  }

  drawAll() {
    const containers = state.comparisons.map(() => create("div"));
    this.comparisons.replaceChildren(...containers);
    const comparisons = containers.map((container, i) => this.drawComparison(container, state.comparisons[i]));
    return Promise.all([this.drawSelected(), ...comparisons]);
  }

  async drawSelected() {
    const view = this.heads.views.find(({ name }) => name === state.name);
    this.grid.select(view, state.head);
    const isMean = state.head === view.heads;
    this.quantitySelect.value = isMean ? "weights" : state.quantity;
    this.quantitySelect.options[1].disabled = isMean; // the mean of scores is not meaningful
    await drawHead(this.panel, this.heads, view, state.head, this.strings, this.signal);
  }

  /** Compare with another model if there is one, or else with another head of the same model. */
  addComparison() {
    const { models, model } = this.page;
    const used = [model.name, ...state.comparisons.map((comparison) => comparison.model)];
    const unused = models.find(({ name, sections }) => sections.includes("attention") && !used.includes(name));
    const head = unused ? state.head : state.comparisons.length + 1;
    state.comparisons.push({ model: (unused ?? model).name, name: state.name, head });
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
      page.saveView();
      this.drawSelected().catch((error) => page.showError(error)); // in the larger space
    };
    const supported = page.models.filter(({ sections }) => sections.includes("attention")).map(({ name }) => [name, name]);
    const removeButton = createButton("✕", remove, { "aria-label": strings.remove });
    const modelSelect = createSelect(supported, model.name, (name) => change({ model: name }));
    const bar = create("div", { class: "bar controls" }, createField(strings.model, modelSelect), removeButton);
    if (!container.firstChild) container.append(bar);
    let heads;
    try {
      heads = await loadHeads(model.name, page.sentence, signal);
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
    removeButton.before(
      createField(strings.attention, createSelect(names, view.name, (name) => change({ name }))),
      createField(strings.headField, createSelect(headOptions, comparison.head, (head) => change({ head: Number(head) }))));
    const panel = new HeadPanel(strings);
    container.replaceChildren(bar, create("p", { class: "hint", text: heads.translation }), panel.element);
    await drawHead(panel, heads, view, comparison.head, strings, signal);
  }
}

/** Return {model, text, target, translation, labels, views, maps}: thumbnails of all heads by attention module. */
async function loadHeads(model, text, signal) {
  const { target, hypotheses } = await getTranslation(model, text, signal);
  const { content, arrays } = await request("inspect/attention", { model, text, target }, signal);
  const maps = new Map();
  for (const view of content.views) {
    maps.set(view.name, Array.from({ length: view.heads + 1 }, (_, head) => arrayToMap(arrays[view.name], head)));
  }
  return { ...content, maps, model, text, target, translation: hypotheses[0].text };
}

async function drawHead(panel, { model, text, target }, view, head, strings, signal) {
  const isMean = head === view.heads;
  const quantity = isMean ? "weights" : state.quantity;
  const body = { model, text, target, name: view.name, head: isMean ? null : head };
  const { content, arrays } = await request("inspect/map", { ...body, quantity }, signal);
  const weights = quantity === "weights" ? arrays : (await request("inspect/map", body, signal)).arrays;
  if (signal.aborted) return;
  const facts = [strings[quantity]];
  if (!isMean && view.entropy) facts.push(strings.entropy(view.entropy[head].toFixed(1)));
  if (!isMean && view.distance) facts.push(strings.distance(view.distance[head].toFixed(1)));
  facts.push(strings.axes);
  const title = `${model} · ${view.name} · ${isMean ? strings.mean : `${strings.head} ${head}`}`;
  const maps = [arrayToMap(arrays.map), arrayToMap(weights.map)];
  panel.show(title, facts.join(" · "), ...maps, content.rows, content.columns, state.zoom);
}

/** Return the last cross-attention, or the last attention module if there is none. */
function defaultView(views) {
  return views.filter((view) => view.group === "cross").at(-1) ?? views.at(-1);
}
