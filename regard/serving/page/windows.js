// What a model looked at that looks within windows: by stage and layer, over the grid of the stage.

import { choice, field, make } from "./make.js";
import { makeMap } from "./maps.js";
import { SIDE, SMALL, cellAt, drawOver } from "./overlay.js";
import { part } from "./packet.js";

const kept = { layer: null, head: null };

/** Fills `card`; `choose([row, column])` asks about a patch of the first stage, `choose(null)` about the whole. */
export function showWindows(card, picture, { about, arrays }, patch, words, choose) {
  const layers = about.windows;
  const large = make("div", { class: "pictures" });
  const small = make("div", { class: "thumbs" });
  const draw = () => {
    const one = layers[kept.layer];
    const weights = arrays[`layer${kept.layer}`];
    const heads = weights.shape[0];
    kept.head = kept.head === null || kept.head < heads ? kept.head : null;
    const frames = one.patch ? [one.reach, [...one.patch, ...one.patch]] : [];
    const cell = about.patch.map((size) => size << one.stage);
    const over = (map, side) => drawOver(picture, { map, cell, side, frames: side === SIDE ? frames : [], smooth: false });
    const valuesOf = (head) => (head === null ? meanOf(weights) : part(weights, head).values);
    const mapOf = (head) => makeMap(patch ? valuesOf(head) : aboveLeast(valuesOf(head)), ...one.grid);
    const canvas = over(mapOf(kept.head), SIDE);
    canvas.addEventListener("click", (event) => choose(cellAt(event, picture, about.patch)));
    const title = `${words.stage} ${one.stage} · ${words.layer} ${one.layer} · ${kept.head === null ? words.mean : `${words.head} ${kept.head}`}`;
    const caption = make("figcaption", { class: "hint", text: patch ? words.windowPatchIs : words.windowIs(...rangeOf(valuesOf(kept.head))) });
    large.replaceChildren(make("figure", { class: "plain" }, make("h3", { text: words.image }), drawOver(picture)));
    large.append(make("figure", { class: "plain windows" }, make("h3", { text: title }), canvas, caption));
    const headOf = (head) => {
      const button = make("button", { class: "cell", "aria-pressed": kept.head === head });
      button.append(over(mapOf(head), SMALL), make("span", { text: head === null ? words.mean : `${words.head} ${head}` }));
      button.addEventListener("click", () => ((kept.head = head), draw()));
      return button;
    };
    small.replaceChildren(headOf(null), ...Array.from({ length: heads }, (_, head) => headOf(head)));
  };
  kept.layer = Math.min(kept.layer ?? layers.length - 1, layers.length - 1);
  const names = layers.map((one, i) => [i, `${words.stage} ${one.stage} · ${words.layer} ${one.layer} · ${one.grid.join(" × ")}`]);
  const bar = make("div", { class: "bar controls" }, field(words.layer, choice(names, kept.layer, (at) => ((kept.layer = Number(at)), draw()))));
  if (patch) bar.append(make("button", { class: "tool", text: words.wholeImage, on: { click: () => choose(null) } }));
  card.append(make("p", { class: "hint", text: words.noRollout }), bar, large, small);
  draw();
}

/** The smallest and the largest, as they are read. */
function rangeOf(values) {
  return [Math.min(...values), Math.max(...values)].map((value) => value.toFixed(2));
}

/** What each has more than the least: all tokens get much the same from their windows, and the difference tells. */
function aboveLeast(values) {
  const least = Math.min(...values);
  return values.map((value) => value - least);
}

function meanOf({ shape: [heads, tokens], values }) {
  const mean = new Float32Array(tokens);
  values.forEach((value, i) => (mean[i % tokens] += value / heads));
  return mean;
}
