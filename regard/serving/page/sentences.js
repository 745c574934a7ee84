// Translations that were asked for, so that sections share one: the last few, by model and sentence.

import { ask } from "./api.js";
import { makeMap } from "./maps.js";
import { part } from "./packet.js";

const MOST = 12;
const known = new Map();

/** {source, hypotheses: [{text, score, tokens, labels, probabilities, map}]}, no map where the engine hides it; the tokens of the best are `target`. */
export async function translationOf(model, text, signal) {
  const key = JSON.stringify([model, text]);
  if (!known.has(key)) {
    const { about, arrays } = await ask("inspect/translation", { model, text, n_best: 4 }, signal);
    about.hypotheses.forEach((one, number) => {
      const alignment = arrays[`alignment${number}`];
      one.map = alignment && makeMap(alignment.values, ...alignment.shape);
    });
    known.set(key, { ...about, target: about.hypotheses[0].tokens });
    if (known.size > MOST) known.delete(known.keys().next().value);
  }
  return known.get(key);
}

/** The map of an array, or of one of several. */
export function mapOf(array, index) {
  const { shape, values } = index === undefined ? array : part(array, index);
  return makeMap(values, ...shape);
}
