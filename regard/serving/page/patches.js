// What a model looked at whose attention spans the whole image: rollout, and every head of a layer.

import { field, make, slider } from "./make.js";
import { makeMap } from "./maps.js";
import { SMALL, cellAt, drawOver } from "./overlay.js";
import { part } from "./packet.js";

const kept = { layer: null };

/** Fills `card`; `choose([row, column])` asks about a patch, `choose(null)` about the answer. */
export function showPatches(card, picture, { about, arrays }, patch, words, choose) {
  const [layers, heads] = arrays.heads.shape;
  const [rows, columns] = about.grid;
  const cell = about.patch;
  const frames = patch ? [[...patch, ...patch]] : [];
  const over = (array, side) => drawOver(picture, { map: makeMap(array.values, rows, columns), cell, side, frames: side ? [] : frames });
  const large = make("div", { class: "pictures" });
  const small = make("div", { class: "thumbs" });
  const draw = (at) => {
    kept.layer = at;
    const canvas = over(part(arrays.rollout, at));
    canvas.addEventListener("click", (event) => choose(cellAt(event, picture, cell)));
    const caption = make("figcaption", { class: "hint", text: patch ? words.patchIs : words.rolloutIs });
    large.replaceChildren(make("figure", { class: "plain" }, make("h3", { text: words.image }), drawOver(picture)));
    large.append(make("figure", { class: "plain rollout" }, make("h3", { text: `${words.rollout} · ${words.layer} ${at}` }), canvas, caption));
    const own = part(arrays.heads, at);
    small.replaceChildren(...Array.from({ length: heads }, (_, head) => make("figure", { class: "plain" },
      over(part(own, head), SMALL), make("figcaption", { class: "hint", text: `${words.head} ${head}` }))));
  };
  const layer = Math.min(kept.layer ?? layers - 1, layers - 1);
  const bar = make("div", { class: "bar controls" }, field(words.layer, slider({ min: 0, max: layers - 1, step: 1, value: layer }, draw)));
  if (patch) bar.append(make("button", { class: "tool", text: words.wholeAnswer, on: { click: () => choose(null) } }));
  card.append(bar, large, small);
  draw(layer);
}
