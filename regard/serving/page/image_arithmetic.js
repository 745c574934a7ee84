// Section "arithmetic" of image models: the attention of one patch, step by step.

import { showArithmetic } from "./arithmetic.js";
import { create } from "./dom.js";
import { loadImageHeads } from "./heads.js";
import { createDropZones, selectedFiles } from "./image_files.js";

export async function showImageArithmetic(container, page, signal) {
  const card = create("section", { class: "card" });
  const draw = async () => {
    if (!selectedFiles.length) return;
    const heads = await loadImageHeads(page.model.name, null, signal);
    if (!signal.aborted) await showArithmetic(card, page, heads, signal);
  };
  container.append(createDropZones(page, () => draw().catch((error) => page.showError(error))), card);
  card.append(create("p", { class: "hint", text: page.strings.selectImage }));
  await draw();
}
