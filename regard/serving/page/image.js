// Section "image": classes and attention of an image, or cross-attention between two views of a scene.

import { initialState, inputWatcher, integer } from "./address.js";
import { request } from "./api.js";
import { create, createShareBar } from "./dom.js";
import { createDropZones, imageForm, selectedFiles } from "./image_files.js";
import { showImagePair } from "./image_pair.js";
import { createImage } from "./overlay.js";
import { showPatchAttention } from "./patch_attention.js";
import { showWindowAttention } from "./window_attention.js";

/**
 * The selected patch and its view, the layer, where null means the last, and the head, where null means the mean. Without a
 * patch, a classifier shows the attention of the whole image, and a two-view model that of the patch in the middle.
 */
const parameters = { patch: integer(null, 0, 99999), view: integer(0, 0, 1), layer: integer(null, 0, 999), head: integer(null, 0, 999) };
const state = initialState(parameters);
const watchInput = inputWatcher();

export const section = { id: "image", requires: ["image", "views"], show, parameters, state };

async function show(container, page, signal) {
  const { strings } = page;
  const isPair = page.model.sections.includes("views");
  const results = create("div");
  if (watchInput(page).isOtherModel) Object.assign(state, initialState(parameters));
  const draw = async () => {
    if (selectedFiles.length < (isPair ? 2 : 1)) return;
    results.replaceChildren();
    page.showError(null);
    try {
      if (isPair) await showImagePair(results, page, state, signal);
      else await showImage(results, page, signal);
    } catch (error) {
      page.showError(error);
    }
  };
  const drawOtherImage = () => {
    Object.assign(state, { patch: null, view: 0 });
    page.saveView({ replace: true });
    return draw();
  };
  container.append(createDropZones(page, drawOtherImage), results);
  await draw();
}

/** Show the classes and the attention of the whole image, or of the selected patch. */
async function showImage(results, page, signal) {
  const { strings } = page;
  const { patch: index } = state;
  const packet = await request("inspect/image", imageForm({ model: page.model.name, patch: index }), signal);
  if (signal.aborted || index !== state.patch) return; // another patch has been selected meanwhile
  const { content, arrays } = packet;
  const attention = create("section", { class: "card" }, create("h2", { text: strings.attention }));
  const classes = create("section", { class: "card" },
    create("h2", { text: strings.classes }), ...content.classes.map(([name, share]) => createShareBar(name, share)));
  if (!content.grid) {  // a model whose attention the page cannot draw
    results.replaceChildren(classes);
    return;
  }
  const hadFocus = results.contains(document.activeElement);
  results.replaceChildren(create("div", { class: "classification" }, classes, attention));
  const columns = content.grid[1];
  const patch = index === null ? null : [Math.floor(index / columns), index % columns];
  const selectPatch = (cell) => {
    state.patch = cell && cell[0] * columns + cell[1];
    page.saveView({ replace: true });
    showImage(results, page, signal).catch((error) => page.showError(error));
  };
  const showAttention = content.windows ? showWindowAttention : showPatchAttention;
  showAttention(attention, createImage(arrays.pixels), packet, patch, page, state, selectPatch);
  if (hadFocus) attention.querySelector("canvas[tabindex]")?.focus();
}
