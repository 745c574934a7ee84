// Explanations of a word of a translation: attribution, next tokens, layers read as tokens, heads, activation patching.
//
// Each function returns elements for data of `Explanation.to_json` and the strings of explanation_strings.js.

import { colourOf, makeScale, textColourOn } from "./colours.js";
import { formatNumber } from "./description.js";
import { create, createScroller } from "./dom.js";
import { isDark } from "./theme.js";

const HEADS_SHOWN = 10;
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;
const part = (tag, className, ...children) => create(tag, { class: className }, ...children);
const headerCell = (text, scope) => create("th", { text, scope });
const signedNumber = (value) => (value < 0 ? "" : "+") + formatNumber(value, 2);

function colourCell(node, scale, share) {
  node.style.backgroundColor = colourOf(scale, share);
  node.style.color = textColourOn(scale, share);
}

/** The contributions of the words of source and prefix, with their sum. */
export function createAttribution({ word, contrast, source, prefix, score, baseline, error }, strings) {
  const name = strings.whyScore(word, contrast);
  const sum = strings.whySum(name, formatNumber(score), formatNumber(baseline), percent(error));
  const high = Math.max(1e-9, ...[...source.scores, ...prefix.scores].map(Math.abs));
  return [
    part("h3", "why-question", strings.whyQuestion(word, contrast)),
    part("p", "hint", sum),
    part("div", "why-sides",
      createSide(strings.whySource, source, high, strings),
      createSide(strings.whyPrefix, prefix, high, strings)),
    part("p", "hint", strings.whyHint),
  ];
}

function createSide(title, { labels, scores, occlusion }, high, strings) {
  if (!labels.length) return part("div", "why-side", part("h3", "", title), part("p", "hint", strings.whyNothing));
  const scale = makeScale(isDark(), true);
  const sentence = part("p", "tokens why-tokens", ...labels.map((label, i) => {
    const token = part("span", "token", label);
    token.title = signedNumber(scores[i]);
    colourCell(token, scale, (scores[i] / high + 1) / 2);
    return token;
  }));
  const header = [strings.whyWord, strings.whyContribution, ...(occlusion.length ? [strings.whyOcclusion] : [])];
  const rows = labels.map((label, i) => part("tr", "",
    headerCell(label, "row"),
    part("td", "", createBar(scores[i], high), part("span", "number", signedNumber(scores[i]))),
    ...(occlusion.length ? [part("td", "number", signedNumber(occlusion[i]))] : [])));
  return part("div", "why-side", part("h3", "", title), sentence, createTable(title, header, rows));
}

function createBar(value, high) {
  const fill = part("span", value < 0 ? "why-fill against" : "why-fill");
  fill.style.width = `${(100 * Math.abs(value)) / high}%`;
  return part("span", "why-bar", fill);
}

function createTable(label, header, rows) {
  const head = part("thead", "", part("tr", "", ...header.map((label) => headerCell(label, "col"))));
  return createScroller("why-scroll", label, part("table", "why-table", head, part("tbody", "", ...rows)));
}

/** The most probable tokens at a position of a lens. */
export function createNextTokens({ tokens, probabilities }, position) {
  const last = tokens.length - 1;
  return part("ol", "next-tokens", ...tokens[last][position].map((token, rank) => {
    const probability = probabilities[last][position][rank];
    const bar = createBar(probability, 1);
    return part("li", "", part("span", "next-token", token), bar, part("span", "number", percent(probability)));
  }));
}

/** A table of the most probable token at every position (column) after every layer (row), the last layer on top. */
export function createLens({ labels, tokens, probabilities, chosen, ranks }, strings, position = null) {
  const scale = makeScale(isDark(), false);
  const rows = tokens.map((layer, number) => part("tr", "", headerCell(strings.layerNumber(number), "row"),
    ...layer.map((best, i) => {
      const cell = part("td", i === position ? "lens-cell chosen-position" : "lens-cell", best[0]);
      const probability = probabilities[number][i][0];
      cell.title = strings.lensCell(best[0], percent(probability), percent(chosen[number][i]), ranks[number][i]);
      colourCell(cell, scale, probability);
      return cell;
    })));
  return createTable(strings.lensTitle, ["", ...labels], rows.reverse());
}

/** The heads with the largest effects in either direction. */
export function createHeads(heads, strings) {
  const shown = [...heads].sort((a, b) => Math.abs(b[2]) - Math.abs(a[2])).slice(0, HEADS_SHOWN);
  shown.sort((a, b) => b[2] - a[2]);
  const high = Math.max(1e-9, ...shown.map(([, , effect]) => Math.abs(effect)));
  return createTable(strings.headsRanked, [strings.headColumn, strings.headEffect], shown.map(([name, head, effect]) => part("tr", "",
    headerCell(`${name} · ${head}`, "row"),
    part("td", "", createBar(effect, high), part("span", "number", signedNumber(effect))))));
}

/** Both maps of activation patching, the last layer on top. */
export function createPatching({ word, contrast, score, other_score: other, source, other_source: otherSource, prefix, encoder, decoder }, strings) {
  const columns = source.map((label, i) => (label === otherSource[i] ? label : `${label} / ${otherSource[i]}`));
  return [
    part("p", "hint", strings.patchingScores(word, contrast, signedNumber(score), signedNumber(other))),
    part("h3", "", strings.patchingEncoder), createShares(strings.patchingEncoder, columns, encoder, strings),
    part("h3", "", strings.patchingDecoder), createShares(strings.patchingDecoder, prefix, decoder, strings),
  ];
}

function createShares(title, labels, layers, strings) {
  const scale = makeScale(isDark(), true);
  const rows = layers.map((shares, layer) => part("tr", "", headerCell(strings.layerNumber(layer), "row"),
    ...shares.map((share) => {
      const cell = part("td", "lens-cell number", `${Math.round(100 * share)}%`);
      colourCell(cell, scale, (Math.max(-1, Math.min(1, share)) + 1) / 2);
      return cell;
    })));
  return createTable(title, ["", ...labels], rows.reverse());
}
