// Section: heads switched off, other scales, another search, another word; the translation beside the old one.

import { ask } from "./api.js";
import { calmly, choice, field, make, numbers, slider } from "./make.js";

export const section = { id: "change", needs: ["change"], reads: true, show };

const START = { sharpness: 1, temperature: 0, seed: 0, beam: null, alpha: null, factor: 0 }; // null: as the server has it
const kept = { ...START, factors: {}, text: null, of: null };

async function show(place, page, signal) {
  const { words, model } = page;
  const subject = JSON.stringify([model.name, page.text]);
  if (kept.of !== subject) Object.assign(kept, { of: subject, text: page.text });
  if (kept.model !== model.name) Object.assign(kept, { model: model.name, factors: {}, beam: null, alpha: null });
  const results = make("section", { class: "card" }, make("h2", { text: words.changeTitle }));
  const controls = make("section", { class: "card" });
  place.append(results, controls);
  const plain = await ask("inspect/change", { model: model.name, text: page.text }, signal);
  if (signal.aborted) return;
  const before = makeLine(words.before);
  const after = makeLine(words.after);
  before.tell(plain.translation, []);
  results.append(before.place, after.place);

  let latest = 0;
  const draw = async () => {
    const own = ++latest;
    if (!kept.text.trim()) return page.tell(new Error(words.blank));
    try {
      const { translation } = await ask("inspect/change", questionOf(model), signal);
      if (own !== latest || signal.aborted) return; // somebody was quicker
      page.tell(null);
      after.tell(translation, plain.translation.labels);
      after.place.dataset.drawn = own;
    } catch (error) {
      if (own === latest) page.tell(error);
    }
  };
  const soon = calmly(draw, 200);
  const set = (values) => (Object.assign(kept, values), soon());
  const text = make("textarea", { rows: 2, maxlength: 10000, "aria-label": words.editWord, spellcheck: "false" });
  text.value = kept.text;
  text.addEventListener("input", () => set({ text: text.value }));
  controls.append(make("h2", { text: words.editWord }), text);
  controls.append(make("h2", { text: words.headsOff }), make("p", { class: "hint", text: words.headsHint }));
  const bar = make("div", { class: "bar controls" });
  const two = (value) => `× ${value}`;
  bar.append(field(words.clickSets, slider({ min: 0, max: 3, step: 0.25, value: kept.factor }, (factor) => (kept.factor = factor), two)));
  bar.append(make("button", { class: "tool", text: words.reset, on: { click: () => (Object.assign(kept, START, { factors: {}, text: page.text }), page.again()) } }));
  controls.append(bar, headTable(plain.heads, words, soon));
  const sliders = make("div", { class: "bar controls" });
  sliders.append(field(words.sharpness, slider({ min: 0.1, max: 3, step: 0.1, value: kept.sharpness }, (sharpness) => set({ sharpness }), two)));
  if (model.kind !== "nat") {
    const own = model.search;
    const beam = kept.beam ?? own.beam;
    sliders.append(field(words.beamSize, choice(numbers([1, 2, 3, 5, 8], beam), beam, (size) => set({ beam: Number(size) }))));
    if (own.length_penalty !== "none") {
      const range = { min: 0, max: Math.max(3, own.alpha), step: 0.1, value: kept.alpha ?? own.alpha };
      sliders.append(field(words.lengthAlpha, slider(range, (alpha) => set({ alpha }))));
    }
    const warm = (value) => (value ? String(value) : words.noSampling);
    sliders.append(field(words.temperature, slider({ min: 0, max: 3, step: 0.1, value: kept.temperature }, (temperature) => set({ temperature }), warm)));
    sliders.append(make("button", { class: "tool", text: words.sampleAgain, on: { click: () => set({ seed: kept.seed + 1 }) } }));
  }
  controls.append(make("h2", { text: words.search }), sliders);
  await draw();
}

function questionOf(model) {
  const { text, factors, sharpness, temperature, seed, beam, alpha } = kept;
  const search = model.kind === "nat" ? {} : temperature ? { temperature, seed, alpha } : { beam, alpha };
  return { model: model.name, text, factors, sharpness, search };
}

/** A translation, with the tokens marked that another does not have at the same place of what they share. */
function makeLine(title) {
  const tokens = make("p", { class: "tokens target" });
  const score = make("span", { class: "hint" });
  const place = make("div", { class: "line" }, make("div", { class: "bar" }, make("h3", { text: title }), score), tokens);
  return {
    place,
    tell({ labels, score: value, probabilities }, others) {
      const common = others.length ? shared(labels, others) : null;
      score.textContent = value.toFixed(3);
      tokens.replaceChildren(...labels.map((label, i) => {
        const changed = common && !common.has(i);
        return make("span", { class: changed ? "token changed" : "token", text: label, title: `${(100 * probabilities[i]).toFixed(0)}%` });
      }));
      place.classList.toggle("differs", Boolean(common) && (common.size < labels.length || labels.length !== others.length));
    },
  };
}

/** Which places of a list belong to the longest sequence that it shares with another. */
function shared(one, other) {
  const lengths = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      lengths[i][j] = one[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const places = new Set();
  for (let i = 0, j = 0; i < one.length && j < other.length; ) {
    if (one[i] === other[j]) places.add(i), i++, j++;
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return places;
}

/** A button a head; pressed, it counts by the factor that was chosen. */
function headTable(heads, words, onChange) {
  const rows = Object.entries(heads).map(([name, count]) => {
    const buttons = Array.from({ length: count }, (_, head) => {
      const button = make("button", { class: "tool head" });
      const mark = () => {
        const factor = kept.factors[name]?.[head];
        button.textContent = factor === undefined ? String(head) : `×${factor}`;
        button.setAttribute("aria-pressed", String(factor !== undefined));
        button.setAttribute("aria-label", `${name}, ${words.head} ${head}${factor === undefined ? "" : ` × ${factor}`}`);
      };
      button.addEventListener("click", () => {
        const own = (kept.factors[name] ??= {});
        if (own[head] === undefined) own[head] = kept.factor;
        else delete own[head];
        if (!Object.keys(own).length) delete kept.factors[name];
        mark();
        onChange();
      });
      mark();
      return button;
    });
    return make("div", { class: "row" }, make("span", { class: "layer name", text: name }), ...buttons);
  });
  return make("div", { class: "rows heads" }, ...rows);
}
