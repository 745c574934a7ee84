// Section: one query of one head, step by step with the model's own numbers, and a toy to play with.

import { ask } from "./api.js";
import { choice, field, make } from "./make.js";
import { part } from "./packet.js";
import { translationOf } from "./sentences.js";
import { drawStrip } from "./strip.js";
import { showToy } from "./toy.js";

export const section = { id: "arithmetic", needs: ["arithmetic"], reads: true, show };

const STEPS = ["product", "scale", "mask", "softmax", "values", "join"];
const kept = { name: null, head: 0, query: 1, step: 0 };
const number = (value) => (value === -Infinity ? "−∞" : value.toFixed(3).replace("-", "−"));

async function show(place, page, signal) {
  const { words } = page;
  const card = make("section", { class: "card walk" });
  const toy = make("section", { class: "card toy" });
  place.append(card, toy);
  showToy(toy, words);
  const model = page.model.name;
  const { target } = await translationOf(model, page.text, signal);
  const { about } = await ask("inspect/attention", { model, text: page.text, target }, signal);
  if (signal.aborted) return;
  const views = new Map(about.views.map((view) => [view.name, view]));
  if (!views.has(kept.name)) kept.name = about.views.filter((view) => view.group === "cross").at(-1)?.name ?? about.views[0].name;

  const draw = async () => {
    const view = views.get(kept.name);
    const rows = about.labels[view.group === "encoder" ? "source" : "decoder_output"];
    kept.head = Math.min(kept.head, view.heads - 1);
    kept.query = Math.min(kept.query, rows.length - 1);
    const { name, head, query } = kept;
    const walk = await ask("inspect/arithmetic", { model, text: page.text, target, name, head, query }, signal);
    if (signal.aborted) return;
    const change = (values) => (Object.assign(kept, values), draw().catch((error) => page.tell(error)));
    const bar = make("div", { class: "bar controls" });
    bar.append(field(words.attention, choice([...views.keys()].map((one) => [one, one]), name, (value) => change({ name: value }))));
    const heads = Array.from({ length: view.heads }, (_, i) => [i, i]);
    bar.append(field(words.head, choice(heads, head, (value) => change({ head: Number(value) }))));
    bar.append(field(words.query, choice(rows.map((label, i) => [i, `${i} ${label}`]), query, (value) => change({ query: Number(value) }))));
    card.replaceChildren(make("h2", { text: words.walkTitle }), bar, ...stepThrough(walk, words));
  };
  await draw();
}

/** Buttons for the steps, and what each of them adds. */
function stepThrough({ about, arrays }, words) {
  const said = make("p", { class: "formula", "aria-live": "polite" });
  const tabs = make("div", { class: "steps", role: "group", "aria-label": words.steps });
  const table = makeTable(about, arrays, words);
  const rest = makeRest(about, arrays, words);
  const go = (step) => {
    kept.step = Math.min(STEPS.length - 1, Math.max(0, step));
    [...tabs.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === kept.step)));
    for (const cell of table.querySelectorAll("[data-step]")) cell.hidden = Number(cell.dataset.step) > kept.step;
    for (const block of rest.children) block.hidden = Number(block.dataset.step) > kept.step;
    said.textContent = explain(STEPS[kept.step], about, arrays, words);
  };
  STEPS.forEach((name, i) => {
    tabs.append(make("button", { class: "tool", text: `${i + 1} ${words.stepNames[name]}`, on: { click: () => go(i) } }));
  });
  tabs.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    go(kept.step + move);
    tabs.children[kept.step].focus();
  });
  go(kept.step);
  return [tabs, said, make("div", { class: "scroll" }, table), rest];
}

/** A row a key: its vector, its product with the query, its score, its weight, its value. */
function makeTable(about, arrays, words) {
  const { q, k, v, products, scores, weights } = arrays;
  const most = largest(q.values, k.values);
  const mostValue = largest(v.values);
  const head = make("tr", {}, ...[
    ["", 0], [`k  (q ${words.above})`, 0], ["q·k", 0, "number"], [`× ${number(about.scale)}`, 1, "number"],
    [words.mask, 2, "number"], [words.weight, 3], ["v", 4],
  ].map(([text, step, name]) => make("th", { text, "data-step": step, class: name })));
  const query = make("tr", { class: "query" }, make("th", { text: `q` }), make("td", {}, drawStrip(q.values, most)));
  const body = about.columns.map((label, i) => {
    const masked = scores.values[i] === -Infinity;
    const bar = make("meter", { min: 0, max: 1, value: Math.min(1, Math.max(0, weights.values[i])) });
    return make("tr", { class: masked ? "masked" : "" },
      make("th", { text: label }),
      make("td", {}, drawStrip(part(k, i).values, most)),
      make("td", { class: "number", text: number(products.values[i]) }),
      make("td", { class: "number", "data-step": 1, text: number(products.values[i] * about.scale) }),
      make("td", { class: "number", "data-step": 2, text: masked ? "✕" : "✓" }),
      make("td", { class: "number", "data-step": 3 }, bar, make("span", { text: number(weights.values[i]) })),
      make("td", { "data-step": 4 }, drawStrip(part(v, i).values, mostValue)));
  });
  return make("table", { class: "arithmetic" }, make("thead", {}, head), make("tbody", {}, query, ...body));
}

/** The weighted sum, the heads side by side, and what the output projection makes of them. */
function makeRest(about, arrays, words) {
  const { heads, output } = arrays;
  const most = largest(heads.values);
  const rows = Array.from({ length: heads.shape[0] }, (_, i) => {
    const label = make("span", { class: "layer", text: `${words.head} ${i}` });
    return make("div", { class: i === kept.head ? "strip own" : "strip" }, label, drawStrip(part(heads, i).values, most));
  });
  const sum = make("div", { "data-step": 4 }, make("h3", { text: words.sum }), drawStrip(part(heads, kept.head).values, most));
  const joined = make("div", { "data-step": 5 }, make("h3", { text: words.joined }), ...rows);
  joined.append(make("h3", { text: words.output }), drawStrip(output.values, largest(output.values), 4));
  return make("div", { class: "rest" }, sum, joined);
}

/** The step as a formula, for the key that gets the largest weight. */
function explain(step, about, arrays, words) {
  const { q, k, v, products, scores, weights, heads } = arrays;
  const best = weights.values.indexOf(Math.max(...weights.values));
  const key = part(k, best).values;
  const label = about.columns[best];
  const terms = Array.from(q.values.subarray(0, 3), (x, i) => `${number(x)}×${number(key[i])}`).join(" + ");
  const width = q.values.length;
  const scaled = products.values[best] * about.scale;
  const hidden = scores.values.filter((score) => score === -Infinity).length;
  const total = scores.values.reduce((sum, score) => sum + Math.exp(score - scores.values[best]), 0);
  const first = Array.from(weights.values.subarray(0, 3), (w, i) => `${number(w)}×${number(part(v, i).values[0])}`).join(" + ");
  switch (step) {
    case "product": return `q·k(${label}) = ${terms} + … = ${number(products.values[best])}`;
    case "scale": return `${number(products.values[best])} × ${number(about.scale)} = ${number(scaled)}   (1/√${width} = ${number(width ** -0.5)})`;
    case "mask": return hidden ? `${hidden} ${words.hidden}` : words.noneHidden;
    case "softmax": return about.softmax
      ? `e^${number(scores.values[best])} / Σ e^s = 1 / ${number(total)} = ${number(weights.values[best])}`
      : words.noSoftmax;
    case "values": return `o₀ = ${first} + … = ${number(part(heads, kept.head).values[0])}`;
    default: return words.joinIs(...heads.shape, arrays.output.values.length);
  }
}

function largest(...lists) {
  return Math.max(1e-9, ...lists.map((values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0)));
}
