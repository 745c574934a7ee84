// Section "attention" of image models: the heads of every layer as matrices over patches.

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
