// Shows that requests are running: the panel is busy, and a note appears if they take long.

import { watchRequests } from "./api.js";
import { create } from "./dom.js";

const MILLISECONDS_UNTIL_SHOWN = 400;
const SECONDS_UNTIL_COUNTED = 3;

/** Mark `panel` as busy while requests are running, and show `note`; `getText()` returns its text. */
export function showProgress(panel, note, getText) {
  const seconds = create("span", { "aria-hidden": "true" }); // a screen reader does not read every second
  let started = 0;
  let timer = null;
  const tick = () => {
    const elapsed = Math.floor((Date.now() - started) / 1000);
    if (note.hidden) note.replaceChildren(create("span", { text: getText() }), seconds);
    note.hidden = false;
    seconds.textContent = elapsed >= SECONDS_UNTIL_COUNTED ? ` ${elapsed} s` : "";
    timer = setTimeout(tick, 1000);
  };
  watchRequests((pending) => {
    panel.setAttribute("aria-busy", String(pending > 0));
    if (pending && timer === null) {
      started = Date.now();
      timer = setTimeout(tick, MILLISECONDS_UNTIL_SHOWN);
    } else if (!pending) {
      clearTimeout(timer);
      timer = null;
      note.hidden = true;
    }
  });
}
