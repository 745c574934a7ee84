// Two views of a scene: where a patch of the first looks in the second.

import { ask } from "./api.js";
import { field, make, slider } from "./make.js";
import { makeMap } from "./maps.js";
import { cellAt, drawOver, pictureOf } from "./overlay.js";
import { part } from "./packet.js";

export async function showViews(results, files, page, signal) {
  const { words } = page;
  const form = new FormData();
  for (const file of files.slice(0, 2)) form.append("image", file);
  form.append("model", page.model.name);
  const { about, arrays } = await ask("inspect/views", form, signal);
  if (signal.aborted) return;
  const [rows, columns] = about.grid;
  const pictures = [pictureOf(arrays.pixels0), pictureOf(arrays.pixels1)];
  const cell = [pictures[0].height / rows, pictures[0].width / columns];
  const place = make("div", { class: "pictures" });
  const state = { patch: [rows >> 1, columns >> 1], layer: about.layers - 1 };
  const draw = () => {
    const { patch, layer } = state;
    const first = drawOver(pictures[0], { cell, frames: [[...patch, ...patch]] });
    first.addEventListener("click", (event) => ((state.patch = cellAt(event, pictures[0], cell)), draw()));
    const map = makeMap(part(arrays[`cross${layer}`], patch[0] * columns + patch[1]).values, rows, columns);
    place.replaceChildren(
      make("figure", { class: "plain first" }, make("h3", { text: words.views[0] }), first, make("figcaption", { class: "hint", text: words.clickPatch })),
      make("figure", { class: "plain second" }, make("h3", { text: words.views[1] }), drawOver(pictures[1], { map, cell })));
  };
  const range = slider({ min: 0, max: about.layers - 1, step: 1, value: state.layer }, (layer) => ((state.layer = layer), draw()));
  results.replaceChildren(make("section", { class: "card" }, make("h2", { text: words.otherView }), make("div", { class: "bar controls" }, field(words.layer, range)), place));
  draw();
}
