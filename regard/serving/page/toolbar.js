// Buttons that apply to the whole view: the guided tour, copying its link, and downloads.

import { create, createButton } from "./dom.js";
import { createDownloads } from "./downloads.js";

const SHOWN_MILLISECONDS = 2000;

/** Fill the toolbar above the section. */
export function fillToolbar(container, panels, page, startTour) {
  const { strings } = page;
  const copyButton = createButton(strings.copyLink, () => copyLink(copyButton, strings), { class: "tool copy-link" });
  container.replaceChildren(createButton(strings.tour, startTour, { class: "tool start-tour" }), copyButton, createDownloads(panels, page));
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
