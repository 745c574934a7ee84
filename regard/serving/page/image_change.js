// Section "change" of image models: the classes with scaled heads or another scale of scores.

import { createHeadControls, createHeadTable, resetChanges, stateOfChanges } from "./change.js";
import { request } from "./api.js";
import { create, createField, createScroller, createSlider, debounce } from "./dom.js";
import { createDropZones, imageForm, selectedFiles } from "./image_files.js";

export async function showImageChange(container, page, signal) {
  const { strings, model } = page;
  const state = stateOfChanges(page);
  const results = create("section", { class: "card" }, create("p", { class: "hint", text: strings.selectImage }));
  const controls = create("section", { class: "card" });
  let latestRequest = 0;
  const draw = async () => {
    if (!selectedFiles.length) return;
    const number = ++latestRequest;
    const fields = { model: model.name, factors: JSON.stringify(state.factors), sharpness: state.sharpness };
    const result = await request("inspect/image_change", imageForm(fields), signal);
    if (number !== latestRequest || signal.aborted) return;
    page.showError(null);
    results.replaceChildren(create("h2", { text: strings.changeTitle }), createClassTable(result, strings));
    if (!controls.children.length) createControls(result.heads);
  };
  const redraw = () => draw().catch((error) => page.showError(error));
  const drawSoon = debounce(redraw, 200);
  const change = (values) => {
    Object.assign(state, values);
    page.saveView({ replace: true });
    drawSoon();
  };
  const reset = () => {
    resetChanges();
    page.saveView();
    page.reload();
  };
  const createControls = (heads) => {
    const range = { min: 0.1, max: 3, step: 0.1, value: state.sharpness };
    controls.append(
      create("h2", { text: strings.heads }),
      create("p", { class: "hint", text: strings.headsHint }),
      createHeadControls(strings, reset),
      createHeadTable(heads, strings, () => change({})),
      createField(strings.sharpness, createSlider(range, (sharpness) => change({ sharpness }), (value) => `× ${value}`)));
  };
  container.append(createDropZones(page, redraw), results, controls);
  await draw();
}

/** Create a table with the probability of each class before and after the change. */
function createClassTable({ original, changed }, strings) {
  const after = new Map(changed.map(({ name, probability }) => [name, probability]));
  const names = [...new Set([...original, ...changed].map(({ name }) => name))];
  const before = new Map(original.map(({ name, probability }) => [name, probability]));
  const format = (probability) => (probability === undefined ? "–" : `${(100 * probability).toFixed(1)}%`);
  const header = ["", strings.original, strings.changed].map((text) => create("th", { text, scope: "col" }));
  const rows = names.map((name) => create("tr", { class: name === changed[0].name ? "first" : "" },
    create("th", { text: name, scope: "row" }),
    ...[before, after].map((probabilities) => create("td", { class: "number" },
      create("meter", { min: 0, max: 1, value: probabilities.get(name) ?? 0, "aria-hidden": "true" }),
      create("span", { text: format(probabilities.get(name)) })))));
  const differs = original[0].name !== changed[0].name;
  return createScroller(differs ? "scroll differs" : "scroll", strings.classes,
    create("table", { class: "classes" }, create("thead", {}, create("tr", {}, ...header)), create("tbody", {}, ...rows)));
}
