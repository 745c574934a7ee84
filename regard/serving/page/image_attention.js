// Sections "attention" and "arithmetic" of image models: the heads of every layer as matrices over patches, and the attention
// of one patch step by step.

import { showArithmetic } from "./arithmetic.js";
import { AttentionSection, section as attention } from "./attention.js";
import { create, createField } from "./dom.js";
import { loadImageHeads } from "./heads.js";
import { createDropZones, selectedFiles } from "./image_files.js";

export async function showImageAttention(container, page, signal) {
  const { strings } = page;
  const { state } = attention;
  const results = create("div");
  const draw = async () => {
    if (!selectedFiles.length) return;
    const load = () => loadImageHeads(page.model.name, state.patch, signal);
    const section = new AttentionSection(page, signal, { section: "image_attention", load });
    results.replaceChildren(...(page.model.kind === "swin" ? [createPatchField()] : []), section.element);
    await section.load();
  };
  const redraw = () => draw().catch((error) => page.showError(error));
  const createPatchField = () => {
    const input = create("input", { type: "number", min: 0, max: 9999, value: state.patch });
    input.addEventListener("change", () => {
      state.patch = Math.max(0, Math.min(9999, Math.trunc(Number(input.value) || 0)));
      page.saveView();
      redraw();
    });
    return create("div", { class: "card" }, createField(strings.windowOfPatch, input));
  };
  container.append(createDropZones(page, redraw), results);
  await draw();
}

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
