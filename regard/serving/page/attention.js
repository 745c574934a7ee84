// Section: every layer and head at a glance, one of them at large, and another beside it, of this model or of another.

import { ask } from "./api.js";
import { makeScale } from "./colours.js";
import { HeadGrid } from "./grid.js";
import { HeadPanel } from "./headpanel.js";
import { choice, field, make } from "./make.js";
import { mapOf, translationOf } from "./sentences.js";
import { isDark } from "./theme.js";

export const section = { id: "attention", needs: ["attention"], reads: true, show };

const GROUPS = ["cross", "decoder", "encoder"];
const kept = { name: null, head: 0, quantity: "weights", zoom: 1, others: [] };

async function show(place, page, signal) {
  const { words } = page;
  const overview = make("section", { class: "card overview" });
  const detail = make("section", { class: "card detail" });
  place.append(make("div", { class: "attention" }, overview, detail));
  const seen = await lookAt(page.model.name, page.text, signal);
  if (signal.aborted) return;
  if (!seen.views.some((view) => view.name === kept.name)) Object.assign(kept, firstOf(seen.views));

  const panel = new HeadPanel(words);
  const controls = make("div", { class: "bar controls" });
  const beside = make("div", { class: "beside" });
  detail.append(controls, make("div", { class: "compared" }, panel.place, beside));

  const groups = GROUPS.map((name) => ({
    title: words[name],
    hint: words[`${name}Hint`],
    views: seen.views.filter((view) => view.group === name),
  })).filter((group) => group.views.length);
  const grid = new HeadGrid(overview, groups, words, (view, head) => {
    Object.assign(kept, { name: view.name, head });
    if (matchMedia("(max-width: 900px)").matches) detail.scrollIntoView({ behavior: "smooth" });
    return drawFirst();
  });
  grid.refresh((view) => seen.maps.get(view.name), (map) => makeScale(isDark(), map.signed));

  const drawFirst = async () => {
    const view = seen.views.find((one) => one.name === kept.name);
    grid.select(view, kept.head);
    markQuantity(kept.head === view.heads);
    await drawHead(panel, seen, view, kept.head, words, signal);
  };
  const drawOther = async (place, other) => {
    const model = page.models.find((one) => one.name === other.model) ?? page.model;
    const change = (values) => {
      Object.assign(other, values);
      return drawOther(place, other).catch((error) => page.tell(error));
    };
    const able = page.models.filter((one) => one.sections.includes("attention")).map(({ name }) => [name, name]);
    const remove = () => (kept.others.splice(kept.others.indexOf(other), 1), place.remove(), drawFirst().catch((error) => page.tell(error)));
    const away = make("button", { class: "tool", text: "✕", "aria-label": words.remove, on: { click: remove } });
    const bar = make("div", { class: "bar controls" }, field(words.model, choice(able, model.name, (name) => change({ model: name }))), away);
    if (!place.firstChild) place.append(bar);
    let others;
    try {
      others = await lookAt(model.name, page.text, signal);
    } catch (error) {
      if (!signal.aborted) place.replaceChildren(bar, make("p", { class: "problem", text: `${model.name}: ${error.message}` }));
      return;
    }
    if (signal.aborted) return;
    const view = others.views.find((one) => one.name === other.name) ?? others.views.at(-1);
    Object.assign(other, { model: model.name, name: view.name, head: Math.min(other.head, view.heads) });
    const names = others.views.map(({ name }) => [name, name]);
    const heads = Array.from({ length: view.heads + 1 }, (_, i) => [i, i === view.heads ? words.mean : i]);
    away.before(field(words.attention, choice(names, view.name, (name) => change({ name }))));
    away.before(field(words.head, choice(heads, other.head, (value) => change({ head: Number(value) }))));
    const own = new HeadPanel(words);
    place.replaceChildren(bar, make("p", { class: "hint", text: others.translation }), own.place);
    await drawHead(own, others, view, other.head, words, signal);
  };
  const drawOthers = () => {
    const places = kept.others.map(() => make("div"));
    beside.replaceChildren(...places);
    return Promise.all(places.map((one, i) => drawOther(one, kept.others[i])));
  };
  const draw = () => Promise.all([drawFirst(), drawOthers()]);
  const redraw = () => draw().catch((error) => page.tell(error));

  const quantities = [["weights", words.weights], ["scores", words.scores]];
  const quantity = choice(quantities, kept.quantity, (value) => ((kept.quantity = value), redraw()));
  const markQuantity = (mean) => {
    quantity.value = mean ? "weights" : kept.quantity;
    quantity.options[1].disabled = mean; // of scores there is no mean
  };
  controls.append(field(words.show, quantity));
  const compare = make("button", { class: "tool compare", text: words.compare });
  compare.addEventListener("click", () => {
    const used = [page.model.name, ...kept.others.map((other) => other.model)];
    const fresh = page.models.find((one) => one.sections.includes("attention") && !used.includes(one.name));
    kept.others.push({ model: (fresh ?? page.model).name, name: kept.name, head: fresh ? kept.head : kept.others.length + 1 });
    redraw();
  });
  controls.append(compare);
  for (const [sign, name, factor] of [["−", "zoomOut", 0.8], ["+", "zoomIn", 1.25]]) {
    const zoom = () => ((kept.zoom = Math.min(4, Math.max(0.4, kept.zoom * factor))), redraw());
    controls.append(make("button", { class: "tool", text: sign, "aria-label": words[name], on: { click: zoom } }));
  }
  await draw();
}

/** What all heads of a model looked at, small. */
async function lookAt(model, text, signal) {
  const { target, hypotheses } = await translationOf(model, text, signal);
  const { about, arrays } = await ask("inspect/attention", { model, text, target }, signal);
  const maps = new Map();
  for (const view of about.views) {
    maps.set(view.name, Array.from({ length: view.heads + 1 }, (_, head) => mapOf(arrays[view.name], head)));
  }
  return { ...about, maps, model, text, target, translation: hypotheses[0].text };
}

async function drawHead(panel, seen, view, head, words, signal) {
  const mean = head === view.heads;
  const quantity = mean ? "weights" : kept.quantity; // of scores there is no mean
  const question = { model: seen.model, text: seen.text, target: seen.target, name: view.name, head: mean ? null : head };
  const { about, arrays } = await ask("inspect/map", { ...question, quantity }, signal);
  const weights = quantity === "weights" ? arrays : (await ask("inspect/map", question, signal)).arrays;
  if (signal.aborted) return;
  const facts = [words[quantity]];
  if (!mean && view.entropy) facts.push(words.entropy(view.entropy[head].toFixed(1)));
  if (!mean && view.distance) facts.push(words.distance(view.distance[head].toFixed(1)));
  const title = `${seen.model} · ${view.name} · ${mean ? words.mean : `${words.head} ${head}`}`;
  panel.show(title, [...facts, words.axes].join(" · "), mapOf(arrays.map), mapOf(weights.map), about.rows, about.columns, kept.zoom);
}

/** The last layer across, or the last there is. */
function firstOf(views) {
  const across = views.filter((view) => view.group === "cross");
  const last = (across.length ? across : views).at(-1);
  return { name: last.name, head: 0 };
}
