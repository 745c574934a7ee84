// Section "translate": the translation of the text; of the chosen sentence, the best translations and their alignment.

import { initialState, inputWatcher, integer, text } from "./address.js";
import { request } from "./api.js";
import { makeScale } from "./colours.js";
import { describePoint, formatNumber } from "./description.js";
import { createFileCard } from "./document_file.js";
import { create, createField, createSelect } from "./dom.js";
import { createGlossaryField, createTermList, parseTerms } from "./glossary.js";
import { mapRows, setData } from "./panel_data.js";
import { describeQuality, showShaded } from "./quality.js";
import { SentencePair } from "./sentence.js";
import { isDark } from "./theme.js";
import { getTranslation } from "./translations.js";

const parameters = { hypothesis: integer(0, 0, 999), glossary: text(""), source: text(""), target: text("") };
const LANGUAGE_TAGS = { zh: "zh-Hans", zt: "zh-Hant" };
const state = initialState(parameters);
const watchInput = inputWatcher();

export const section = { id: "translate", requires: ["translate"], readsText: true, show, parameters, state };

async function show(container, page, signal) {
  const { strings, model } = page;
  const { terms } = parseTerms(state.glossary);
  const change = (values) => {
    Object.assign(state, values);
    page.saveView();
    page.reload();
  };
  container.append(createGlossaryField(state.glossary, strings, (glossary) => change({ glossary })));
  container.append(...createScriptFields(model, strings, change));
  const scripts = chosenScripts(model);
  if (page.sentence !== page.text.trim()) await showWhole(container, page, terms, scripts, signal);
  if (signal.aborted) return;
  const card = create("section", { class: "card" }, create("h2", { text: strings.translation }));
  container.append(card);
  const { source, source_pieces: sourcePieces, hypotheses } =
    await getTranslation(model.name, page.sentence, signal, terms, scripts);
  if (signal.aborted) return;
  const pair = create("div", { class: "pair" });
  const readout = create("p", { class: "readout", "aria-live": "polite" });
  const translation = create("p", { class: "translation", lang: languageTag(scripts.target ?? model.target) });
  const [quality, termList] = [create("div"), create("div")];
  card.append(translation, quality, termList, pair, readout, create("p", { class: "hint", text: strings.alignmentHint }));

  const select = (hypothesis) => {
    showShaded(translation, hypothesis.text, hypothesis.quality, strings);
    quality.replaceChildren(describeQuality(hypothesis.quality, strings));
    pair.replaceChildren();
    termList.replaceChildren(createTermList(hypothesis.terms ?? [], strings));
    rows.forEach((row, i) => row.firstChild.setAttribute("aria-pressed", String(hypotheses[i] === hypothesis)));
    if (hypothesis.map) showAlignment(pair, readout, source, sourcePieces, hypothesis, strings);
    else readout.textContent = strings.noInspection(model.name, model.engine);
  };
  const choose = (index) => {
    state.hypothesis = index;
    page.saveView();
    select(hypotheses[index]);
  };
  const rows = hypotheses.map((hypothesis, i) => createRow(hypothesis, () => choose(i)));
  const hint = model.kind === "nat" ? strings.natScoreHint : strings.scoreHint;
  container.append(create("section", { class: "card" },
    create("h2", { text: strings.bestTranslations }),
    create("ol", { class: "alternatives" }, ...rows),
    create("p", { class: "hint", text: hint })));
  container.append(createFileCard(page, terms, scripts, signal));
  if (watchInput(page).isOtherInput) state.hypothesis = 0;
  state.hypothesis = page.limit(strings.hypothesis, state.hypothesis, hypotheses.length);
  select(hypotheses[state.hypothesis]);
}

/** Return {source, target}: the chosen scripts of Chinese, undefined for a language in the script of the model. */
function chosenScripts({ sources, targets }) {
  const choose = (codes, chosen) => codes.slice(1).find((code) => code === chosen);
  return { source: choose(sources, state.source), target: choose(targets, state.target) };
}

function languageTag(code) {
  return LANGUAGE_TAGS[code] ?? code ?? "";
}

/** Create a field for the script of each language of the model that can be converted. */
function createScriptFields(model, strings, change) {
  const chosen = chosenScripts(model);
  const fields = [["source", model.sources], ["target", model.targets]].filter(([, codes]) => codes.length > 1);
  return fields.map(([side, codes]) => {
    const options = codes.map((code) => [code, strings.scripts[languageTag(code)] ?? code]);
    const select = createSelect(options, chosen[side], (code) => change({ [side]: code === codes[0] ? "" : code }));
    select.classList.add(`script-${side}`);
    return createField(strings.scriptOf[side], select);
  });
}

/** Show the translation of all sentences of the text. */
async function showWhole(container, { strings, model, text }, glossary, scripts, signal) {
  const body = { model: model.name, texts: text, confidence: true, glossary, ...scripts };
  const { texts } = await request("translate", body, signal);
  if (signal.aborted) return;
  container.append(create("section", { class: "card" },
    create("h2", { text: strings.wholeTranslation }),
    create("p", { class: "translation whole", lang: languageTag(scripts.target ?? model.target), text: texts[0].text }),
    describeQuality(lowestQuality(texts[0].sentences), strings)));
}

/** Return the lowest confidence of the sentences of a text, and the flags of all of them. */
function lowestQuality(sentences) {
  const best = sentences.map((sentence) => sentence.translations[0]);
  const isKnown = best.every(({ confidence }) => confidence !== null);
  return {
    confidence: isKnown ? Math.min(1, ...best.map(({ confidence }) => confidence)) : null,
    flags: Object.assign({}, ...best.map(({ flags }) => flags).reverse()),
  };
}

/** Show source and target tokens; pointing at one shows its weights and probability. */
function showAlignment(pair, readout, source, sourcePieces, { map, labels, pieces, probabilities }, strings) {
  const scale = makeScale(isDark(), false);
  setData(pair, () => mapRows(map, labels, source));
  const pointAt = (point) => {
    tokens.show(map, scale, point);
    const probability = probabilities[point?.row];
    const prefix = probability === undefined ? "" : `${strings.probability} ${(100 * probability).toFixed(0)}% · `;
    const weights = describePoint(map, labels, source, point, strings);
    readout.textContent = weights ? `${prefix}${weights}` : strings.pointAtToken;
  };
  const tokens = new SentencePair(pair, source, labels, pointAt, [sourcePieces, pieces]);
  pointAt(null);
}

function createRow(hypothesis, onClick) {
  const button = create("button", { class: "alternative", on: { click: onClick } },
    create("span", { class: "score", text: formatNumber(hypothesis.score) }),
    create("span", { text: hypothesis.text || "∅" }));
  return create("li", {}, button);
}
