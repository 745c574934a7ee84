// Joins the pieces of words, so that a map has one row or column for each word.

import { makeMap } from "./maps.js";

const SPACE = "␣"; // label of a token that is only a space, with which a word starts

/** Return labels in which pieces are appended to the label before them; `isPiece` marks those that continue a word. */
export function joinLabels(labels, isPiece) {
  const words = [];
  labels.forEach((label, i) => {
    const last = words.length - 1;
    if (isPiece[i] && last >= 0) words[last] = (words[last] === SPACE ? "" : words[last]) + label;
    else words.push(label);
  });
  return words;
}

/** Return a map of words: weights to the pieces of a word are added up, weights from them are averaged. */
export function joinMap(map, isRowPiece, isColumnPiece) {
  const [rowWords, columnWords] = [indexWords(isRowPiece), indexWords(isColumnPiece)];
  const rows = rowWords.at(-1) + 1;
  const columns = columnWords.at(-1) + 1;
  const pieces = new Float32Array(rows);
  for (const word of rowWords) pieces[word]++;
  const values = new Float32Array(rows * columns);
  map.values.forEach((value, i) => {
    const row = rowWords[Math.floor(i / map.columns)];
    values[row * columns + columnWords[i % map.columns]] += value / pieces[row];
  });
  return makeMap(values, rows, columns);
}

/** Return the index of the word of each token. */
function indexWords(isPiece) {
  let word = -1;
  return isPiece.map((piece) => (piece && word >= 0 ? word : ++word));
}
