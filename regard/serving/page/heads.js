// Attention maps of the server: small maps of all heads, and full maps of one head or of several.

import { request } from "./api.js";
import { imageForm } from "./image_files.js";
import { makeMap } from "./maps.js";
import { arrayToMap, getTranslation } from "./translations.js";
import { joinLabels, joinMap } from "./words.js";

/**
 * Return {model, load, translation, labels, views, maps}: thumbnails of all heads by attention module. `load(operation,
 * fields, signal)` sends a request about the same sentence or image.
 */
export async function loadHeads(model, text, signal) {
  const { target, hypotheses } = await getTranslation(model, text, signal);
  return { ...(await loadTarget(model, text, target, signal)), translation: hypotheses[0].text };
}

/** Return the heads of a model that reads the selected image; `patch` selects the window of a model with windows. */
export function loadImageHeads(model, patch, signal) {
  const load = (operation, fields, itsSignal) =>
    request(`inspect/image_${operation}`, imageForm({ model, patch, ...fields }), itsSignal);
  return loadMaps({ model, patch, isImage: true, load }, signal);
}

/** Return the heads of another model, which reads the same translation if it has the same tokens. */
export async function loadOtherHeads(heads, model, signal) {
  if (model === heads.model) return heads;
  if (heads.isImage) return loadImageHeads(model, heads.patch, signal);
  try {
    const other = await loadTarget(model, heads.text, heads.target, signal);
    if (isEqual(other.labels, heads.labels)) return { ...other, translation: heads.translation };
  } catch (error) {
    if (error.name === "AbortError") throw error; // other errors: the tokens do not exist in its vocabulary
  }
  return loadHeads(model, heads.text, signal);
}

function loadTarget(model, text, target, signal) {
  const load = (operation, fields, itsSignal) =>
    request(`inspect/${operation}`, { model, text, target, ...fields }, itsSignal);
  return loadMaps({ model, text, target, load }, signal);
}

async function loadMaps(source, signal) {
  const { content, arrays } = await source.load("attention", {}, signal);
  const maps = new Map();
  for (const view of content.views) {
    maps.set(view.name, Array.from({ length: view.heads + 1 }, (_, head) => arrayToMap(arrays[view.name], head)));
  }
  return { ...content, ...source, maps };
}

/**
 * Return {map, weights, rows, columns, hasPieces}, and `layers`, the maps of the heads in `overlaid` if there are any. An
 * index equal to the number of heads means their mean. With `words`, the pieces of words are joined in maps of weights.
 */
export async function loadMap(heads, view, head, { quantity, overlaid, words }, signal) {
  const body = { name: view.name, head: head === view.heads ? null : head };
  const load = (fields) => heads.load("map", { ...body, ...fields }, signal);
  const { content, arrays } = await load(overlaid.length ? { head: null, every_head: true } : { quantity });
  const hasPieces = [...content.row_pieces, ...content.column_pieces].includes(true);
  const isJoined = words && hasPieces && quantity === "weights";
  const join = (map) => (isJoined ? joinMap(map, content.row_pieces, content.column_pieces) : map);
  const joinAxis = (labels, isPiece) => (isJoined ? joinLabels(labels, isPiece) : labels);
  const axes = {
    rows: joinAxis(content.rows, content.row_pieces),
    columns: joinAxis(content.columns, content.column_pieces),
    hasPieces,
  };
  if (overlaid.length) {
    const layers = overlaid.map((number) => ({ head: number, map: join(arrayToMap(arrays.map, number)) }));
    const mean = meanOf(layers.map(({ map }) => map));
    return { ...axes, map: mean, weights: mean, layers };
  }
  const weights = quantity === "weights" ? arrays : (await load({ quantity: "weights" })).arrays;
  return { ...axes, map: join(arrayToMap(arrays.map)), weights: join(arrayToMap(weights.map)) };
}

/** Return the last cross-attention, or the last attention module if there is none. */
export function defaultView(views) {
  return views.filter((view) => view.group === "cross").at(-1) ?? views.at(-1);
}

/** Return `one` − `other`, or null if their labels differ. */
export function subtractMaps(one, other) {
  if (!isEqual([one.rows, one.columns], [other.rows, other.columns])) return null;
  return makeMap(one.map.values.map((value, i) => value - other.map.values[i]), one.map.rows, one.map.columns);
}

function meanOf(maps) {
  const values = new Float32Array(maps[0].values.length);
  for (const map of maps) map.values.forEach((value, i) => (values[i] += value / maps.length));
  return makeMap(values, maps[0].rows, maps[0].columns);
}

function isEqual(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}
