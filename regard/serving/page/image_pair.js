// Two views of a scene: cross-attention from a patch of the first view to the second view.

import { request } from "./api.js";
import { create, createField, createSlider } from "./dom.js";
import { createFigure, createImage, drawOverlay, patchAt } from "./overlay.js";
import { sliceArray } from "./packet.js";
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
  let patch = [rows >> 1, columns >> 1];
  let layer = content.layers - 1;
  const draw = () => {
    const first = drawOverlay(images[0], { patchSize, frames: [[...patch, ...patch]] });
    first.addEventListener("click", (event) => {
      patch = patchAt(event, images[0], patchSize);
      draw();
    });
    const { values } = sliceArray(arrays[`cross${layer}`], patch[0] * columns + patch[1]);
    const second = drawOverlay(images[1], { map: arrayToMap({ shape: content.grid, values }), patchSize });
    figures.replaceChildren(
      createFigure("first", strings.views[0], first, strings.clickPatch),
      createFigure("second", strings.views[1], second));
  };
  const slider = createSlider({ min: 0, max: content.layers - 1, step: 1, value: layer }, (value) => {
    layer = value;
    draw();
  });
  results.replaceChildren(create("section", { class: "card" },
    create("h2", { text: strings.imagePairTitle }),
    create("div", { class: "bar controls" }, createField(strings.layerField, slider)),
    figures));
  draw();
}
