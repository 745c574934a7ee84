// The selected images, which all sections share: files of the user, or drawn examples.

import { create, createButton } from "./dom.js";
import { createDropZone } from "./drop_zone.js";
import { EXAMPLES, drawExample } from "./image_examples.js";

/** The selected files. They are kept when a section is closed. */
export const selectedFiles = [];
/** Name of the example that is selected, as in the address; null for the user's own files. */
let selectedExample = null;

/** Value in the address that stands for a file of the user. */
export const OWN_IMAGE = "own";

/** Return the name of the selected example, OWN_IMAGE, or null if the model reads no image or none is selected. */
export function selectedImage({ sections }) {
  if (!sections.includes("image") && !sections.includes("views")) return null;
  return selectedExample ?? (selectedFiles.length ? OWN_IMAGE : null);
}

/** Return a form with the first `count` selected images and other fields; fields that are null are omitted. */
export function imageForm(fields, count = 1) {
  const form = new FormData();
  for (const file of selectedFiles.slice(0, count)) form.append("image", file);
  for (const [name, value] of Object.entries(fields)) if (value !== null && value !== undefined) form.append(name, value);
  return form;
}

/** Create a card with a drop zone for each image of the model, and the examples. `onFile()` is called for each choice. */
export function createDropZones(page, onFile) {
  const { strings } = page;
  const isPair = page.model.sections.includes("views");
  const titles = isPair ? strings.views : [""];
  const zones = titles.map((title, number) => {
    const fileName = selectedFiles[number]?.name;
    return createDropZone({ title, text: strings.dropImage, fileName, accept: "image/*" }, (file) => {
      selectedFiles[number] = file;
      selectedExample = null;
      page.saveView();
      onFile();
    });
  });
  const select = async (name) => {
    await selectExample(name, isPair);
    page.saveView();
    zones.forEach((zone, number) => {
      zone.querySelector(".hint").textContent = selectedFiles[number].name;
    });
    onFile();
  };
  const buttons = EXAMPLES.map((name) => createButton(strings.examples[name], () => select(name), { class: "tool example" }));
  return create("section", { class: "card" },
    create("div", { class: "drop-zones" }, ...zones),
    create("div", { class: "bar examples" }, create("span", { class: "hint", text: strings.examplesLabel }), ...buttons));
}

/** Select a drawn example: one image, or two views of a scene. Unknown names are ignored. */
export async function selectExample(name, isPair) {
  if (!EXAMPLES.includes(name)) return;
  const views = await Promise.all((isPair ? [0, 1] : [0]).map((view) => drawExample(name, view)));
  selectedFiles.splice(0, selectedFiles.length, ...views);
  selectedExample = name;
}
