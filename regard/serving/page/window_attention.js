// Attention of a model with windows (Swin): each layer and head on the grid of its stage.

import { create, createButton, createField, createSelect } from "./dom.js";
import { makeMap } from "./maps.js";
import { LARGE, THUMBNAIL, createFigure, drawOverlay, makeSelectable } from "./overlay.js";
import { sliceArray } from "./packet.js";

/**
 * Fill `card`. `state` holds the shown layer, where null means the last, and head, where null means the mean of all heads.
 * `selectPatch([row, column])` shows the attention of a patch, `selectPatch(null)` of all patches.
 */
export function showWindowAttention(card, image, { content, arrays }, patch, page, state, selectPatch) {
  const { strings } = page;
  const layers = content.windows;
  const layerName = ({ stage, layer }) => `${strings.stage(stage)} · ${strings.layer(layer)}`;
  const headName = (head) => (head === null ? strings.mean : `${strings.head} ${head}`);
  const large = create("div", { class: "pictures" });
  const thumbnails = create("div", { class: "thumbnails" });
  const draw = () => {
    const number = state.layer ?? layers.length - 1;
    const layer = layers[number];
    const weights = arrays[`layer${number}`];
    const heads = weights.shape[0];
    if (state.head >= heads) state.head = null;
    const frames = layer.patch ? [layer.reach, [...layer.patch, ...layer.patch]] : [];
    const patchSize = content.patch.map((size) => size << layer.stage);
    const valuesOf = (head) => (head === null ? meanOverHeads(weights) : sliceArray(weights, head).values);
    const drawMap = (head, side) => {
      const values = patch ? valuesOf(head) : subtractMinimum(valuesOf(head));
      const map = makeMap(values, ...layer.grid);
      return drawOverlay(image, { map, patchSize, side, frames: side === LARGE ? frames : [], smooth: false });
    };
    const selectHead = (head) => {
      state.head = head;
      page.saveView({ replace: true });
      draw();
    };
    const createThumbnail = (head) => create("button", {
      class: "cell", "aria-pressed": String(state.head === head), on: { click: () => selectHead(head) },
    }, drawMap(head, THUMBNAIL), create("span", { text: headName(head) }));

    const canvas = drawMap(state.head, LARGE);
    makeSelectable(canvas, image, content.patch, layers[0].grid, patch, selectPatch, strings.attention);
    const title = `${layerName(layer)} · ${headName(state.head)}`;
    const hint = patch ? strings.windowPatchHint : strings.windowHint(...formatRange(valuesOf(state.head)));
    large.replaceChildren(
      createFigure("", strings.modelInput, drawOverlay(image)),
      createFigure("windows", title, canvas, hint));
    thumbnails.replaceChildren(createThumbnail(null), ...Array.from({ length: heads }, (_, head) => createThumbnail(head)));
  };
  const last = layers.length - 1;
  if (state.layer !== null) state.layer = page.limit(strings.layerField, state.layer, last + 1);
  const options = layers.map((layer, i) => [i, `${layerName(layer)} · ${layer.grid.join(" × ")}`]);
  const select = createSelect(options, state.layer ?? last, (layer) => {
    state.layer = Number(layer) === last ? null : Number(layer);
    page.saveView({ replace: true });
    draw();
  });
  const bar = create("div", { class: "bar controls" }, createField(strings.layerField, select));
  if (patch) bar.append(createButton(strings.wholeImage, () => selectPatch(null)));
  card.append(create("p", { class: "hint", text: strings.noRollout }), bar, large, thumbnails);
  draw();
}

function formatRange(values) {
  return [Math.min(...values), Math.max(...values)].map((value) => value.toFixed(2));
}

/** All tokens receive similar attention within their windows, so that only the differences are visible. */
function subtractMinimum(values) {
  const minimum = Math.min(...values);
  return values.map((value) => value - minimum);
}

function meanOverHeads({ shape: [heads, tokens], values }) {
  const mean = new Float32Array(tokens);
  values.forEach((value, i) => {
    mean[i % tokens] += value / heads;
  });
  return mean;
}
