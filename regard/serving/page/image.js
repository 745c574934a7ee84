// Section "image": classes and attention of an image, or cross-attention between two views of a scene.

import { request } from "./api.js";
import { create } from "./dom.js";
import { showImagePair } from "./image_pair.js";
import { createImage } from "./overlay.js";
import { showPatchAttention } from "./patch_attention.js";
import { showWindowAttention } from "./window_attention.js";

export const section = { id: "image", requires: ["image", "views"], show };

/** The selected files, kept when the section is closed. */
const files = [];

async function show(container, page, signal) {
  const { strings } = page;
  const isPair = page.model.sections.includes("views");
  const results = create("div");
  const draw = async () => {
    if (files.length < (isPair ? 2 : 1)) return;
    results.replaceChildren();
    page.showError(null);
    try {
      if (isPair) await showImagePair(results, files, page, signal);
      else await showImage(results, page, signal);
    } catch (error) {
      page.showError(error);
    }
  };
  const titles = isPair ? strings.views : [""];
  const zones = titles.map((title, number) => createDropZone(number, title, strings, draw));
  container.append(create("section", { class: "card drop-zones" }, ...zones), results);
  await draw();
}

/** Create an area on which a file can be dropped, or which opens a file dialog. */
function createDropZone(number, title, strings, onFile) {
  const input = create("input", { type: "file", accept: "image/*" });
  const fileName = create("span", { class: "hint", text: files[number]?.name ?? "" });
  const zone = create("label", { class: "drop-zone", tabindex: 0 },
    create("strong", { text: title }), create("span", { text: strings.dropImage }), fileName, input);
  const select = (file) => {
    if (!file) return;
    files[number] = file;
    fileName.textContent = file.name;
    onFile();
  };
  input.addEventListener("change", () => select(input.files[0]));
  zone.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    input.click();
  });
  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.add("drag-over");
    });
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("drag-over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("drag-over");
    select(event.dataTransfer.files[0]);
  });
  return zone;
}

/** Show the classes and the attention of the whole image, or of the patch with an index. */
async function showImage(results, page, signal, patchIndex = null) {
  const { strings } = page;
  const form = new FormData();
  form.append("image", files[0]);
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
