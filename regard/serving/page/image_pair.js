// Two views of a scene: cross-attention from a patch of one view to the other view, in both directions.

import { request } from "./api.js";
import { formatNumber } from "./description.js";
import { create, createField, createSlider } from "./dom.js";
import { imageForm } from "./image_files.js";
import { createFigure, createImage, drawOverlay, makeSelectable } from "./overlay.js";
import { sliceArray } from "./packet.js";
import { arrayToMap } from "./translations.js";

/** Fill `results`; `state` holds the shown layer, where null means the last, and the selected view and patch. */
export async function showImagePair(results, page, state, signal) {
  const { strings } = page;
  const { content, arrays } = await request("inspect/views", imageForm({ model: page.model.name }, 2), signal);
  if (signal.aborted) return;
  const [rows, columns] = content.grid;
  const images = [createImage(arrays.pixels0), createImage(arrays.pixels1)];
  const patchSize = [images[0].height / rows, images[0].width / columns];
  const figures = create("div", { class: "pictures" });
  const readout = create("p", { class: "readout", "aria-live": "polite" });
  const mutual = create("p", { class: "hint" });
  const last = content.layers - 1;
  let layer = state.layer === null ? last : page.limit(strings.layerField, state.layer, last + 1);
  const centre = (rows >> 1) * columns + (columns >> 1);
  let selected = { view: state.view, patch: Math.min(state.patch ?? centre, rows * columns - 1) };
  const weightsOf = (view, patch) => sliceArray(arrays[`${view ? "reverse" : "cross"}${layer}`], patch).values;
  const bestMatch = (view, patch) => {
    const weights = weightsOf(view, patch);
    return weights.indexOf(Math.max(...weights));
  };
  const cellOf = (patch) => [Math.floor(patch / columns), patch % columns];
  const frameOf = (patch) => [...cellOf(patch), ...cellOf(patch)];
  const draw = () => {
    const { view, patch } = selected;
    const match = bestMatch(view, patch);
    const back = bestMatch(1 - view, match);
    const map = arrayToMap({ shape: content.grid, values: weightsOf(view, patch) });
    const drawView = (number) => {
      const isSource = number === view;
      const frames = isSource ? [frameOf(patch), ...(back === patch ? [] : [frameOf(back)])] : [frameOf(match)];
      const canvas = drawOverlay(images[number], { map: isSource ? null : map, patchSize, frames });
      const select = ([row, column]) => {
        selected = { view: number, patch: row * columns + column };
        Object.assign(state, selected);
        page.saveView({ replace: true });
        draw();
      };
      makeSelectable(canvas, images[number], patchSize, content.grid, cellOf(isSource ? patch : match), select, strings.views[number]);
      return createFigure(number ? "second" : "first", strings.views[number], canvas, isSource ? strings.clickPatch : strings.matchHint);
    };
    const focused = [...figures.querySelectorAll("canvas")].indexOf(document.activeElement);
    figures.replaceChildren(drawView(0), drawView(1));
    figures.querySelectorAll("canvas")[focused]?.focus();
    const weight = formatNumber(weightsOf(view, patch)[match]);
    const [from, to] = [cellOf(patch), cellOf(match)].map((cell) => cell.join(", "));
    const patches = Array.from({ length: rows * columns }, (_, i) => i);
    mutual.textContent = strings.mutualMatches(patches.filter((i) => bestMatch(1, bestMatch(0, i)) === i).length, patches.length, layer);
    readout.textContent = strings.match(strings.views[view], from, strings.views[1 - view], to, weight, back === patch);
  };
  const slider = createSlider({ min: 0, max: last, step: 1, value: layer }, (value) => {
    layer = value;
    state.layer = value === last ? null : value;
    page.saveView({ replace: true });
    draw();
  });
  results.replaceChildren(create("section", { class: "card" },
    create("h2", { text: strings.imagePairTitle }),
    create("div", { class: "bar controls" }, createField(strings.layerField, slider)),
    readout, figures,
    mutual));
  draw();
}
