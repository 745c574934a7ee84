// Attention of a model with windows (Swin): each layer and head on the grid of its stage.

import { create, createButton, createField, createSelect } from "./dom.js";
import { makeMap } from "./maps.js";
import { LARGE, THUMBNAIL, createFigure, drawOverlay, patchAt } from "./overlay.js";
import { sliceArray } from "./packet.js";

/** The selection; the head null means the mean of all heads. */
const state = { layer: null, head: null };

/** Fill `card`. `selectPatch([row, column])` shows the attention of a patch, `selectPatch(null)` of all patches. */
export function showWindowAttention(card, image, { content, arrays }, patch, strings, selectPatch) {
  const layers = content.windows;
  const layerName = ({ stage, layer }) => `${strings.stage(stage)} · ${strings.layer(layer)}`;
  const headName = (head) => (head === null ? strings.mean : `${strings.head} ${head}`);
  const large = create("div", { class: "pictures" });
  const thumbnails = create("div", { class: "thumbnails" });
  const draw = () => {
    const layer = layers[state.layer];
    const weights = arrays[`layer${state.layer}`];
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
      draw();
    };
    const createThumbnail = (head) => create("button", {
      class: "cell", "aria-pressed": String(state.head === head), on: { click: () => selectHead(head) },
    }, drawMap(head, THUMBNAIL), create("span", { text: headName(head) }));

    const canvas = drawMap(state.head, LARGE);
    canvas.addEventListener("click", (event) => selectPatch(patchAt(event, image, content.patch)));
    const title = `${layerName(layer)} · ${headName(state.head)}`;
    const hint = patch ? strings.windowPatchHint : strings.windowHint(...formatRange(valuesOf(state.head)));
    large.replaceChildren(
      createFigure("", strings.modelInput, drawOverlay(image)),
      createFigure("windows", title, canvas, hint));
    thumbnails.replaceChildren(createThumbnail(null), ...Array.from({ length: heads }, (_, head) => createThumbnail(head)));
  };
  state.layer = Math.min(state.layer ?? layers.length - 1, layers.length - 1);
  const options = layers.map((layer, i) => [i, `${layerName(layer)} · ${layer.grid.join(" × ")}`]);
  const select = createSelect(options, state.layer, (layer) => {
    state.layer = Number(layer);
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
