// Sentences of the current text and their translations, cached so that sections share them.

import { request } from "./api.js";
import { makeMap } from "./maps.js";
import { sliceArray } from "./packet.js";

const CACHE_SIZE = 12;
const translations = new Map();
const sentences = new Map();

/** Return the response of inspect/sentences. */
export function getSentences(model, text, signal) {
  return cached(sentences, [model, text], () => request("inspect/sentences", { model, text }, signal));
}

/**
 * Return {source, hypotheses: [{text, score, tokens, labels, probabilities, map}], target}. `target` are the tokens of
 * the best hypothesis. `glossary` are [term, translation] pairs, `scripts` the chosen
 * scripts of Chinese, {source, target}. `map` is the alignment; it is undefined for engines without attention weights.
 */
export function getTranslation(model, text, signal, glossary = [], scripts = {}) {
  return cached(translations, [model, text, glossary, scripts], async () => {
    const body = { model, text, n_best: 4, glossary, ...scripts };
    const { content, arrays } = await request("inspect/translation", body, signal);
    content.hypotheses.forEach((hypothesis, number) => {
      const alignment = arrays[`alignment${number}`];
      hypothesis.map = alignment && arrayToMap(alignment);
    });
    return { ...content, target: content.hypotheses[0].tokens };
  });
}

/** Return the value of a key; load and store it if it is missing. */
async function cached(cache, key, load) {
  const name = JSON.stringify(key);
  if (!cache.has(name)) {
    cache.set(name, await load());
    if (cache.size > CACHE_SIZE) cache.delete(cache.keys().next().value);
  }
  return cache.get(name);
}

/** Convert an array, or one element of it, to a map. */
export function arrayToMap(array, index) {
  const { shape, values } = index === undefined ? array : sliceArray(array, index);
  return makeMap(values, ...shape);
}
