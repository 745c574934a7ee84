// Example sentences, and buttons that apply to the whole view: the guided tour, copying its link, and downloads.

import { create, createButton } from "./dom.js";
import { createDownloads } from "./downloads.js";

const SHOWN_MILLISECONDS = 2000;

/** Example sentences by source language. */
const SENTENCES = {
  en: ["I love apples", "I am human", "Yesterday my older brother bought three books at the market."],
  zh: ["我喜欢苹果", "我是人类"],
  de: ["Ich mag Äpfel", "Gestern kaufte mein Bruder drei Bücher."],
};

/** Fill the toolbar above the section. `enter(sentence)` is called for an example; null shows none. */
export function fillToolbar(container, panels, page, startTour, enter) {
  const { strings, model } = page;
  const sentences = enter ? SENTENCES[model.source] ?? [] : [];
  const examples = sentences.map((sentence) => createButton(sentence, () => enter(sentence)));
  if (examples.length) examples.unshift(create("span", { class: "hint", text: strings.examplesLabel }));
  const copyButton = createButton(strings.copyLink, () => copyLink(copyButton, strings), { class: "tool copy-link" });
  container.replaceChildren(create("div", { class: "bar example-sentences" }, ...examples), createButton(strings.tour, startTour, { class: "tool start-tour" }), copyButton, createDownloads(panels, page));
}

/** Copy the address of the view. Where the browser forbids it, show the address for copying by hand. */
async function copyLink(button, strings) {
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = strings.linkCopied;
    setTimeout(() => {
      button.textContent = strings.copyLink;
    }, SHOWN_MILLISECONDS);
  } catch {
    const field = create("input", { class: "link", readonly: true, value: location.href, "aria-label": strings.linkTitle });
    button.replaceWith(field);
    field.select();
  }
}
