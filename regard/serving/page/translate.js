// Section: a sentence and its translations, and what each word looked at.

import { makeScale } from "./colours.js";
import { make } from "./make.js";
import { SentencePair } from "./sentence.js";
import { translationOf } from "./sentences.js";
import { describePoint } from "./description.js";
import { isDark } from "./theme.js";

export const section = { id: "translate", needs: ["translate"], reads: true, show };

async function show(place, page, signal) {
  const { words } = page;
  const card = make("section", { class: "card" }, make("h2", { text: words.translation }));
  place.append(card);
  const found = await translationOf(page.model.name, page.text, signal);
  if (signal.aborted) return;
  const pair = make("div", { class: "pair" });
  const told = make("p", { class: "readout", "aria-live": "polite" });
  const answer = make("p", { class: "answer", lang: page.model.target ?? "" });
  card.append(answer, pair, told);
  const rows = make("ol", { class: "alternatives" });
  const others = make("section", { class: "card" }, make("h2", { text: words.alternatives }), rows);
  others.append(make("p", { class: "hint", text: page.model.kind === "nat" ? words.scoresAtOnceAre : words.scoresAre }));
  place.append(others);

  const choose = (one) => {
    answer.textContent = one.text;
    pair.replaceChildren();
    if (!one.map) {
      told.textContent = words.lacksProbe(page.model.name, page.model.engine);
      mark(one);
      return;
    }
    const scale = makeScale(isDark(), false);
    const pointAt = (point) => {
      tokens.show(one.map, scale, point);
      const said = one.probabilities[point?.row];
      const probability = said === undefined ? "" : `${words.probability} ${(100 * said).toFixed(0)}% · `;
      const sentence = describePoint(one.map, one.labels, found.source, point, words);
      told.textContent = sentence ? `${probability}${sentence}` : words.pointAtToken;
    };
    const tokens = new SentencePair(pair, found.source, one.labels, pointAt);
    pointAt(null);
    mark(one);
  };
  const mark = (one) => {
    for (const button of rows.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.value === String(found.hypotheses.indexOf(one))));
    }
  };
  found.hypotheses.forEach((one, number) => rows.append(makeRow(one, number, () => choose(one))));
  choose(found.hypotheses[0]);
}

function makeRow(one, number, onChoose) {
  const score = make("span", { class: "score", text: one.score.toFixed(3) });
  const button = make("button", { class: "alternative", value: number, on: { click: onChoose } }, score);
  button.append(make("span", { text: one.text || "∅" }));
  return make("li", {}, button);
}
