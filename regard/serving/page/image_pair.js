// Two views of a scene: cross-attention from a patch of one view to the other view, in both directions.

import { request } from "./api.js";
import { formatNumber } from "./description.js";
import { create, createField, createSlider } from "./dom.js";
import { createFigure, createImage, drawOverlay, patchAt } from "./overlay.js";
import { sliceArray } from "./packet.js";
import { moveIndex } from "./pointing.js";
import { arrayToMap } from "./translations.js";

export async function showImagePair(results, files, page, signal) {
  const { strings } = page;
  const form = new FormData();
  for (const file of files.slice(0, 2)) form.append("image", file);
  form.append("model", page.model.name);
  const { content, arrays } = await request("inspect/views", form, signal);
  if (signal.aborted) return;
  const [rows, columns] = content.grid;
  const images = [createImage(arrays.pixels0), createImage(arrays.pixels1)];
  const patchSize = [images[0].height / rows, images[0].width / columns];
  const figures = create("div", { class: "pictures" });
  const readout = create("p", { class: "readout", "aria-live": "polite" });
  let layer = content.layers - 1;
  let selected = { view: 0, patch: (rows >> 1) * columns + (columns >> 1) };
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
        draw();
      };
      canvas.addEventListener("click", (event) => select(patchAt(event, images[number], patchSize)));
      makeMovable(canvas, isSource ? cellOf(patch) : cellOf(match), content.grid, select, strings.views[number]);
      return createFigure(number ? "second" : "first", strings.views[number], canvas, isSource ? strings.clickPatch : strings.matchHint);
    };
    const focused = [...figures.querySelectorAll("canvas")].indexOf(document.activeElement);
    figures.replaceChildren(drawView(0), drawView(1));
    figures.querySelectorAll("canvas")[focused]?.focus();
    const weight = formatNumber(weightsOf(view, patch)[match]);
    const [from, to] = [cellOf(patch), cellOf(match)].map((cell) => cell.join(", "));
    readout.textContent = strings.match(strings.views[view], from, strings.views[1 - view], to, weight, back === patch);
  };
  const mutual = Array.from({ length: rows * columns }, (_, patch) => patch).filter((patch) => bestMatch(1, bestMatch(0, patch)) === patch);
  const slider = createSlider({ min: 0, max: content.layers - 1, step: 1, value: layer }, (value) => {
    layer = value;
    draw();
  });
  results.replaceChildren(create("section", { class: "card" },
    create("h2", { text: strings.imagePairTitle }),
    create("div", { class: "bar controls" }, createField(strings.layerField, slider)),
    readout, figures,
    create("p", { class: "hint", text: strings.mutualMatches(mutual.length, rows * columns) })));
  draw();
}

/** Let the arrow keys select a patch of an image. */
function makeMovable(canvas, [row, column], [rows, columns], select, label) {
  Object.assign(canvas, { tabIndex: 0 });
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", label);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    select([moveIndex(row, step[0], rows), moveIndex(column, step[1], columns)]);
  });
}
