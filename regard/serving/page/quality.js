// Confidence and flags of a translation: its tokens are shaded, and suspected faults are listed.

import { create } from "./dom.js";

const UNCERTAIN = 0.5;

/** Write the text into the element; the tokens {start, end, confidence} are shaded by their confidence. */
export function showShaded(element, text, quality, strings) {
  const characters = [...text]; // positions count characters, not UTF-16 units
  const nodes = [];
  let position = 0;
  for (const { start, end, confidence } of quality?.tokens ?? []) {
    if (start < position || end <= start) continue; // bytes of one character
    if (start > position) nodes.push(characters.slice(position, start).join(""));
    const part = characters.slice(start, end).join("");
    const span = create("span", {
      class: confidence < UNCERTAIN ? "shaded uncertain" : "shaded",
      title: strings.tokenConfidence(part.trim(), percent(confidence)),
      text: part,
    });
    span.style.setProperty("--doubt", `${Math.round(100 * (1 - confidence))}%`);
    nodes.push(span);
    position = end;
  }
  nodes.push(characters.slice(position).join(""));
  element.replaceChildren(...nodes);
}

/** Return an element with the confidence of a sentence and its flags. */
export function describeQuality(quality, strings) {
  const box = create("div", { class: "quality" });
  if (!quality) return box;
  const { confidence, flags } = quality;
  if (confidence === null) box.append(create("p", { class: "hint", text: strings.notCalibrated }));
  else {
    const text = strings.confidence(percent(confidence));
    const meter = create("meter", { min: "0", max: "1", low: "0.4", high: "0.7", optimum: "1", value: String(confidence) });
    meter.setAttribute("aria-label", text);
    box.append(create("p", { class: "confidence", title: strings.confidenceHint }, meter, create("span", { text })));
  }
  const items = Object.entries(flags ?? {}).map(([name, detail]) =>
    create("li", { class: "flag", "data-flag": name, text: (strings.flags[name] ?? ((value) => `${name}: ${value}`))(detail) }));
  if (items.length) {
    const list = create("ul", { class: "flags" }, ...items);
    list.setAttribute("aria-label", strings.flagsLabel);
    box.append(list);
  }
  return box;
}

function percent(share) {
  return Math.round(100 * share);
}
