// Translations of the current sentence, cached so that sections share them.

import { request } from "./api.js";
import { makeMap } from "./maps.js";
import { sliceArray } from "./packet.js";

const CACHE_SIZE = 12;
const cache = new Map();

/**
 * Return {source, hypotheses: [{text, score, tokens, labels, probabilities, map}], target}. `target` are the tokens of
 * the best hypothesis. `map` is the alignment; it is undefined for engines without attention weights.
 */
export async function getTranslation(model, text, signal) {
  const key = JSON.stringify([model, text]);
  if (!cache.has(key)) {
    const { content, arrays } = await request("inspect/translation", { model, text, n_best: 4 }, signal);
    content.hypotheses.forEach((hypothesis, number) => {
      const alignment = arrays[`alignment${number}`];
      hypothesis.map = alignment && arrayToMap(alignment);
    });
    cache.set(key, { ...content, target: content.hypotheses[0].tokens });
    if (cache.size > CACHE_SIZE) cache.delete(cache.keys().next().value);
  }
  return cache.get(key);
}

/** Convert an array, or one element of it, to a map. */
export function arrayToMap(array, index) {
  const { shape, values } = index === undefined ? array : sliceArray(array, index);
  return makeMap(values, ...shape);
}
