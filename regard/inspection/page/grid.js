// An overview of all layers and heads: one thumbnail per head, drawn when it scrolls into view.

import { create } from "./dom.js";
import { drawThumbnail } from "./matrix.js";

const SIZE = 52;

/** One row per layer and one button per head, plus one for the mean over heads. Calls `onSelect(view, head)`. */
export class HeadGrid {
  constructor(container, groups, strings, onSelect) {
    this.cells = new Map();
    this.onSelect = onSelect;
    this.observer = new IntersectionObserver((entries) => entries.forEach((entry) => this.appear(entry)), {
      rootMargin: "800px",
    });
    for (const group of groups) container.append(this.makeGroup(group, strings));
    container.addEventListener("keydown", (event) => this.moveFocus(event));
  }

  /** Redraws all visible thumbnails: `load(view)` returns the maps of a view, `scale(map)` a colour scale. */
  async refresh(load, scale) {
    Object.assign(this, { load, scale });
    this.observer.disconnect();
    for (const cell of this.cells.values()) this.observer.observe(cell.button);
  }

  select(view, head) {
    for (const cell of this.cells.values()) {
      const selected = cell.view === view && cell.head === head;
      cell.button.setAttribute("aria-pressed", String(selected));
      cell.button.tabIndex = selected ? 0 : -1;
    }
  }

  async appear({ target, isIntersecting }) {
    if (!isIntersecting) return;
    this.observer.unobserve(target);
    const { view, head, canvas } = this.cells.get(target);
    const maps = await this.load(view);
    drawThumbnail(canvas, maps[head], this.scale(maps[head]), SIZE);
  }

  makeGroup({ title, hint, views }, strings) {
    return create("section", { class: "group" },
      create("h3", { text: title }),
      create("p", { class: "hint", text: hint }),
      create("div", { class: "rows" }, ...views.map((view) => this.makeRow(view, strings))));
  }

  makeRow(view, strings) {
    const cells = Array.from({ length: view.heads + 1 }, (_, head) => this.makeCell(view, head, strings));
    return create("div", { class: "row" }, create("span", { class: "layer", text: strings.layer(view.layer) }), ...cells);
  }

  makeCell(view, head, strings) {
    const isMean = head === view.heads;
    const canvas = create("canvas", { width: SIZE, height: SIZE });
    const button = create("button", {
      class: "cell", tabindex: -1, "aria-pressed": "false", on: { click: () => this.onSelect(view, head) },
      "aria-label": `${view.name}, ${isMean ? strings.mean : `${strings.head} ${head}`}`,
    }, canvas, create("span", { text: isMean ? strings.mean : String(head) }));
    this.cells.set(button, { view, head, canvas, button });
    return button;
  }

  /** Moves the focus and the selection with the arrow keys. */
  moveFocus(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step || !this.cells.has(document.activeElement)) return;
    event.preventDefault();
    const focused = document.activeElement;
    const rows = [...new Set([...this.cells.keys()].map((button) => button.parentElement))];
    const row = rows[rows.indexOf(focused.parentElement) + step[1]];
    const column = [...focused.parentElement.querySelectorAll("button")].indexOf(focused) + step[0];
    const buttons = row ? row.querySelectorAll("button") : [];
    const next = buttons[Math.min(column, buttons.length - 1)];
    if (!next || column < 0) return;
    next.focus();
    next.click();
  }
}
