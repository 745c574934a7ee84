// Section "image": classes and attention of an image, or cross-attention between two views of a scene.

import { request } from "./api.js";
import { create } from "./dom.js";
import { createDropZones, selectedFiles } from "./image_files.js";
import { showImagePair } from "./image_pair.js";
import { createImage } from "./overlay.js";
import { showPatchAttention } from "./patch_attention.js";
import { showWindowAttention } from "./window_attention.js";

export const section = { id: "image", requires: ["image", "views"], show };

async function show(container, page, signal) {
  const { strings } = page;
  const isPair = page.model.sections.includes("views");
  const results = create("div");
  const draw = async () => {
    if (selectedFiles.length < (isPair ? 2 : 1)) return;
    results.replaceChildren();
    page.showError(null);
    try {
      if (isPair) await showImagePair(results, selectedFiles, page, signal);
      else await showImage(results, page, signal);
    } catch (error) {
      page.showError(error);
    }
  };
  container.append(createDropZones(page, draw), results);
  await draw();
}

/** Show the classes and the attention of the whole image, or of the patch with an index. */
async function showImage(results, page, signal, patchIndex = null) {
  const { strings } = page;
  const form = new FormData();
  form.append("image", selectedFiles[0]);
  form.append("model", page.model.name);
  if (patchIndex !== null) form.append("patch", patchIndex);
  const packet = await request("inspect/image", form, signal);
  if (signal.aborted) return;
  const { content, arrays } = packet;
  const attention = create("section", { class: "card" }, create("h2", { text: strings.attention }));
  const classes = create("section", { class: "card" },
    create("h2", { text: strings.classes }), ...content.classes.map(createClass));
  if (!content.grid) {  // a model whose attention the page cannot draw
    results.replaceChildren(classes);
    return;
  }
  results.replaceChildren(create("div", { class: "classification" }, classes, attention));
  const columns = content.grid[1];
  const patch = patchIndex === null ? null : [Math.floor(patchIndex / columns), patchIndex % columns];
  const selectPatch = (newPatch) => {
    const newIndex = newPatch && newPatch[0] * columns + newPatch[1];
    showImage(results, page, signal, newIndex).catch((error) => page.showError(error));
  };
  const showAttention = content.windows ? showWindowAttention : showPatchAttention;
  showAttention(attention, createImage(arrays.pixels), packet, patch, strings, selectPatch);
}

function createClass([name, probability]) {
  return create("div", { class: "class" },
    create("span", { text: name }),
    create("span", { class: "number", text: `${(100 * probability).toFixed(1)}%` }),
    create("meter", { min: 0, max: 1, value: probability }));
}
