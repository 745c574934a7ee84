// The glossary of the section "translate": a field with a term and its translation in each line.

import { create } from "./dom.js";

/** Return the [term, translation] pairs of lines such as "apple = 苹果", and the number of the first other line, or 0. */
export function parseTerms(text) {
  const terms = [];
  let invalid = 0;
  text.split("\n").forEach((line, i) => {
    if (!line.trim()) return;
    const [source, target] = line.split(/\t|=|→/).map((part) => part.trim());
    if (source && target) terms.push([source, target]);
    else invalid ||= i + 1;
  });
  return { terms, invalid };
}

/** Create the field; `onChange(text)` is called when the user has changed the text. */
export function createGlossaryField(text, strings, onChange) {
  const field = create("textarea", {
    rows: 3, maxlength: 20000, spellcheck: "false", "aria-label": strings.glossary, placeholder: strings.glossaryExample,
  });
  field.value = text;
  field.addEventListener("change", () => onChange(field.value));
  const { invalid } = parseTerms(text);
  return create("details", { class: "glossary", open: text !== "" },
    create("summary", { text: strings.glossary }),
    field,
    create("p", { class: "hint", text: invalid ? strings.glossaryInvalid(invalid) : strings.glossaryHint }));
}

/** Create a list of the terms in the sentence, and whether the hypothesis has their translations. */
export function createTermList(terms, strings) {
  const items = terms.map(({ source, target, kept }) => create("li", { class: kept ? "kept" : "lost" },
    `${source} → ${target} `, create("span", { class: "badge", text: kept ? strings.termKept : strings.termLost })));
  return create("ul", { class: "terms" }, ...items);
}
