// Attention of a model with global attention: the rollout, and each head of a layer.

import { create, createButton, createField, createSlider } from "./dom.js";
import { THUMBNAIL, createFigure, drawOverlay, makeSelectable } from "./overlay.js";
import { sliceArray } from "./packet.js";
import { arrayToMap } from "./translations.js";

/**
 * Fill `card`. `state` holds the shown layer, where null means the last. `selectPatch([row, column])` shows the attention of a
 * patch, `selectPatch(null)` of the whole image.
 */
export function showPatchAttention(card, image, { content, arrays }, patch, page, state, selectPatch) {
  const { strings } = page;
  const [layers, heads] = arrays.heads.shape;
  const patchSize = content.patch;
  const frames = patch ? [[...patch, ...patch]] : [];
  const toMap = (array) => arrayToMap({ shape: content.grid, values: array.values });
  const large = create("div", { class: "pictures" });
  const thumbnails = create("div", { class: "thumbnails" });
  const draw = (layer) => {
    const canvas = drawOverlay(image, { map: toMap(sliceArray(arrays.rollout, layer)), patchSize, frames });
    makeSelectable(canvas, image, patchSize, content.grid, patch, selectPatch, strings.rollout);
    const title = `${strings.rollout} · ${strings.layer(layer)}`;
    large.replaceChildren(
      createFigure("", strings.modelInput, drawOverlay(image)),
      createFigure("rollout", title, canvas, patch ? strings.patchHint : strings.rolloutHint));
    const layerHeads = sliceArray(arrays.heads, layer);
    thumbnails.replaceChildren(...Array.from({ length: heads }, (_, head) => {
      const map = toMap(sliceArray(layerHeads, head));
      const caption = create("figcaption", { class: "hint", text: `${strings.head} ${head}` });
      return create("figure", { class: "plain" }, drawOverlay(image, { map, patchSize, side: THUMBNAIL }), caption);
    }));
  };
  const last = layers - 1;
  const layer = state.layer === null ? last : page.limit(strings.layerField, state.layer, layers);
  const slider = createSlider({ min: 0, max: last, step: 1, value: layer }, (value) => {
    state.layer = value === last ? null : value;
    page.saveView({ replace: true });
    draw(value);
  });
  const bar = create("div", { class: "bar controls" }, createField(strings.layerField, slider));
  if (patch) bar.append(createButton(strings.wholeImage, () => selectPatch(null)));
  card.append(bar, large, thumbnails);
  draw(layer);
}
