// Layers × heads at a glance: a small map for every head, drawn when it comes into sight; arrow keys walk.

import { drawThumbnail } from "./matrix.js";

const SIZE = 52;

/** Fills `place` with a row a layer and a button a head, and one for the mean of all; `onChoose(view, head)`. */
export class HeadGrid {
  constructor(place, groups, words, onChoose) {
    this.cells = new Map();
    this.onChoose = onChoose;
    this.sight = new IntersectionObserver((entries) => entries.forEach((entry) => this.appear(entry)), {
      rootMargin: "120px",
    });
    for (const group of groups) place.append(this.makeGroup(group, words));
    place.addEventListener("keydown", (event) => this.walk(event));
  }

  /** Draws again all that is in sight, with maps from `load(view)`. */
  async refresh(load, scale) {
    Object.assign(this, { load, scale });
    this.sight.disconnect();
    for (const cell of this.cells.values()) this.sight.observe(cell.button);
  }

  choose(view, head) {
    for (const cell of this.cells.values()) {
      const chosen = cell.view === view && cell.head === head;
      cell.button.setAttribute("aria-pressed", String(chosen));
      cell.button.tabIndex = chosen ? 0 : -1;
      if (chosen) this.chosen = cell;
    }
  }

  async appear({ target, isIntersecting }) {
    if (!isIntersecting) return;
    this.sight.unobserve(target);
    const { view, head, canvas } = this.cells.get(target);
    const maps = await this.load(view);
    drawThumbnail(canvas, maps[head], this.scale(maps[head]), SIZE);
  }

  makeGroup({ title, hint, views }, words) {
    const section = document.createElement("section");
    section.className = "group";
    const heading = document.createElement("h3");
    heading.textContent = title;
    const note = document.createElement("p");
    note.className = "hint";
    note.textContent = hint;
    const rows = document.createElement("div");
    rows.className = "rows";
    views.forEach((view) => rows.append(this.makeRow(view, words)));
    section.append(heading, note, rows);
    return section;
  }

  makeRow(view, words) {
    const row = document.createElement("div");
    row.className = "row";
    const label = document.createElement("span");
    label.className = "layer";
    label.textContent = `${words.layer} ${view.layer}`;
    row.append(label);
    for (let head = 0; head <= view.heads; head++) row.append(this.makeCell(view, head, words));
    return row;
  }

  makeCell(view, head, words) {
    const button = document.createElement("button");
    const canvas = document.createElement("canvas");
    const caption = document.createElement("span");
    caption.textContent = head === view.heads ? words.mean : String(head);
    button.className = "cell";
    button.tabIndex = -1;
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", `${view.name}, ${head === view.heads ? words.mean : `${words.head} ${head}`}`);
    canvas.width = canvas.height = SIZE;
    button.append(canvas, caption);
    button.addEventListener("click", () => this.onChoose(view, head));
    this.cells.set(button, { view, head, canvas, button });
    return button;
  }

  walk(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step || !this.cells.has(document.activeElement)) return;
    event.preventDefault();
    const here = document.activeElement;
    const rows = [...new Set([...this.cells.keys()].map((button) => button.parentElement))];
    const row = rows[rows.indexOf(here.parentElement) + step[1]];
    const across = [...here.parentElement.querySelectorAll("button")].indexOf(here) + step[0];
    const buttons = row ? row.querySelectorAll("button") : [];
    const next = buttons[Math.min(across, buttons.length - 1)];
    if (!next || across < 0) return;
    next.focus();
    next.click();
  }
}
