// A guided tour through the sections on the user's own models. Its texts are in tour_strings.js, in the same order, and are
// loaded when the tour is opened, because most visits do without them.

import { create, createButton } from "./dom.js";

const LAST_CROSS = { name: null, head: 0 };

/**
 * The stops: the kinds of models that a stop prefers, its section, and changes to the state of the section. A stop without
 * kinds uses any text model. If the server has no such model, only the text of the stop is shown.
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
  { section: "arithmetic", state: { ...LAST_CROSS, query: 1, step: 5 } },
  { section: "attention", state: { name: "encoder.0.attention", head: 0, quantity: "weights" } },
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

/** Fill the container with a stop, counted from 1. `go(number)` opens another one; `go(null)` ends the tour. */
export async function showStop(container, number, { strings, language, model, models }, go) {
  container.hidden = number === null;
  container.dataset.stop = number ?? "";
  if (number === null) {
    container.replaceChildren();
    return;
  }
  const { STOP_STRINGS } = await import("./tour_strings.js");
  if (container.dataset.stop !== String(number)) return; // another stop was opened meanwhile
  const stop = STOPS[number - 1];
  const { title, text } = (STOP_STRINGS[language] ?? STOP_STRINGS.en)[number - 1];
  const hasModel = modelOfStop(stop, { model, models });
  const missing = hasModel ? [] : [create("p", { class: "warning", text: strings.tourMissing((stop.kinds ?? ["transformer"])[0]) })];
  const previous = createButton(strings.tourPrevious, () => go(number - 1), { disabled: number === 1 });
  const next = number === STOPS.length
    ? createButton(strings.tourEnd, () => go(null), { class: "tool primary" })
    : createButton(strings.tourNext, () => go(number + 1), { class: "tool primary" });
  const close = createButton("✕", () => go(null), { "aria-label": strings.tourEnd });
  container.replaceChildren(
    create("div", { class: "bar" }, create("h2", { text: `${number} / ${STOPS.length} · ${title}` }), close),
    create("p", { class: "prose", text }),
    ...missing,
    create("div", { class: "bar controls" }, previous, next));
}
