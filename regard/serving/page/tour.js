// A guided tour through the sections on the user's own models. Its texts are in tour_strings.js, in the same order, and are
// loaded when the tour is opened, because most visits do without them.

import { create, createButton } from "./dom.js";

const LAST_CROSS = { name: null, head: 0 };

/**
 * The stops: the kinds of models that a stop prefers, its section, and changes to the state of the section. A stop without
 * kinds uses any text model. If the server has no such model, the stop has its text and says how to train one.
 */
export const STOPS = [
  { section: "overview", state: { step: null } },
  { section: "arithmetic", state: { ...LAST_CROSS, query: 1, step: 4 } },
  { section: "arithmetic", state: { ...LAST_CROSS, query: 1, step: 2 } },
  { kinds: ["transformer"], section: "arithmetic", state: { name: "decoder.0.attention", head: 0, query: 1, step: 4 } },
  { section: "attention", state: { name: "encoder.0.attention", head: 0, quantity: "weights" } },
  { section: "attention", state: { name: "encoder.0.attention", head: 1, quantity: "weights" } },
  { section: "arithmetic", state: { ...LAST_CROSS, query: 1, step: 0 } },
  { section: "arithmetic", state: { ...LAST_CROSS, query: 1, step: 7 } },
  { section: "positions", state: {} },
  { section: "overview", state: { step: 0 } },
  { section: "overview", state: { step: 1 } },
  { section: "attention", state: { name: "encoder.1.attention", head: 0, quantity: "weights" } },
  { kinds: ["transformer"], section: "overview", state: { step: 0 } },
  { kinds: ["nat"], section: "beam", state: { step: null } },
  { kinds: ["transformer"], section: "attention", state: { name: "decoder.0.attention", head: 0, quantity: "weights" } },
  { kinds: ["transformer"], section: "beam", state: { step: 0 } },
  { section: "translate", state: { hypothesis: 0 } },
  { kinds: ["transformer"], section: "why", state: { token: 2, not: null, against: null } },
  { section: "change", state: {} },
  { section: "attention", state: { name: "encoder.0.attention", head: 0, quantity: "weights" } },
  { section: "arithmetic", state: { ...LAST_CROSS, query: 1, step: 5 } },
  { kinds: ["vit"], section: "image", state: {} },
  { kinds: ["swin"], section: "image", state: {} },
  { kinds: ["croco"], section: "image", state: {} },
  { section: "overview", state: { step: null } },
];

/** Return the model for a stop: the current one if it fits, or else the first that fits, or undefined. */
export function modelOfStop({ kinds }, { model, models }) {
  const fits = (one) => (kinds ? kinds.includes(one.kind) : one.sections.includes("attention"));
  return fits(model) ? model : models.find(fits);
}

/**
 * Fill the container with a stop, counted from 1. `shown` is the id of the open section, which may be another one than that of the
 * stop. `go(number)` opens another stop; `go(null)` ends the tour.
 */
export async function showStop(container, number, page, shown, go) {
  container.hidden = number === null;
  container.dataset.stop = number ?? "";
  if (number === null) {
    container.replaceChildren();
    return;
  }
  const { STRINGS } = await import("./tour_strings.js");
  if (container.dataset.stop !== String(number)) return; // another stop was opened meanwhile
  const strings = STRINGS[page.language] ?? STRINGS.en;
  const stop = STOPS[number - 1];
  const { title, text } = strings.stops[number - 1];
  const notes = [];
  if (!modelOfStop(stop, page)) notes.push(createMissing((stop.kinds ?? ["transformer"])[0], strings));
  else if (shown !== stop.section) notes.push(create("p", { class: "hint", text: strings.away }));
  const close = createButton("✕", () => go(null), { "aria-label": strings.end });
  const isLast = number === STOPS.length;
  container.replaceChildren(
    create("div", { class: "bar" }, create("h2", { text: `${number} / ${STOPS.length} · ${title}` }), close),
    create("p", { class: "prose", text }),
    ...notes,
    create("div", { class: "bar controls" },
      createButton(strings.previous, () => go(number - 1), { disabled: number === 1 }),
      createButton(isLast ? strings.end : strings.next, () => go(isLast ? null : number + 1), { class: "tool primary" }),
      createButton(strings.again, () => go(number))),
    createTerms(strings));
}

/** Say that no model of a kind is served, and how to train and serve one. */
function createMissing(kind, { missing, kinds, trainings }) {
  return create("div", { class: "warning" },
    create("p", { text: missing(kinds[kind]) }),
    create("pre", { text: `${trainings[kind]}\nregard serve runs/demo runs/${kind}` }));
}

/** Create a list that explains terms. */
function createTerms({ termsTitle, terms }) {
  const entries = terms.map(([term, meaning]) => create("div", {}, create("dt", { text: term }), create("dd", { text: meaning })));
  return create("details", { class: "terms-explained" }, create("summary", { text: termsTitle }), create("dl", {}, ...entries));
}
