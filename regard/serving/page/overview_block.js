// One block of the picture of the whole model: a button with the vectors of all tokens, or with an attention map.

import { pageColours, prepare } from "./canvas.js";
import { makeScale } from "./colours.js";
import { formatNumber } from "./description.js";
import { create } from "./dom.js";
import { paint } from "./matrix.js";
import { mapRows, setData } from "./panel_data.js";
import { isDark } from "./theme.js";
import { arrayToMap } from "./translations.js";

const WIDTH = 120, ROW_HEIGHT = 8, MIN_HEIGHT = 16, MAX_HEIGHT = 96, MAP_SIDE = 72;
const SHOWN_NUMBERS = 4;

export class FlowBlock {
  /** `output` and `map` are names of arrays: vectors of tokens, (tokens, features), or attention weights. */
  constructor({ arrays, strings }, { title, output, map, open, why, tokens, depth }) {
    Object.assign(this, { tokens, depth, strings });
    const array = arrays[map] ?? arrays[output];
    this.isMap = Boolean(arrays[map]);
    this.map = array && arrayToMap(array);
    this.canvas = create("canvas");
    this.numbers = create("span", { class: "flow-numbers" });
    this.element = create("button", { class: "flow-block", title: why, "aria-description": why, on: { click: open } },
      create("strong", { text: title }), this.canvas, this.numbers);
    this.element.style.setProperty("--depth", String(depth));
    setData(this.element, () => (this.map ? mapRows(this.map, this.isMap ? undefined : tokens) : []));
    if (this.map) this.image = paint(this.map, makeScale(isDark(), !this.isMap || this.map.signed));
  }

  /** Draw the block when the token at `step` is predicted; null means all tokens at the same time. */
  show(step) {
    const { map, canvas, isMap } = this;
    if (!map) return;
    const row = step === null ? null : Math.min(step, this.tokens.length - 1);
    const [width, height] = isMap ? mapSize(map) : [WIDTH, Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, map.rows * ROW_HEIGHT))];
    const context = prepare(canvas, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, 0, 0, width, height);
    // A map of a long sentence has fewer rows than there are tokens.
    const cell = (height / map.rows) * (isMap ? map.rows / this.rowsOfTokens() : 1);
    if (row !== null) this.markRow(context, row, cell, width, height);
    this.numbers.textContent = isMap ? "" : this.describe(row ?? map.rows - 1);
  }

  rowsOfTokens() {
    return Math.max(this.map.rows, this.tokens.length);
  }

  /** Hide the rows of tokens that have not been predicted yet, and frame that of the current one. */
  markRow(context, row, cell, width, height) {
    const colours = pageColours();
    context.fillStyle = colours.paper;
    context.globalAlpha = 0.85;
    context.fillRect(0, (row + 1) * cell, width, height);
    context.globalAlpha = 1;
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    context.strokeRect(0.75, row * cell + 0.75, width - 1.5, Math.max(2, cell - 1.5));
  }

  /** Return the first numbers of the vector of a token. */
  describe(row) {
    const { columns, values } = this.map;
    const numbers = Array.from(values.subarray(row * columns, row * columns + SHOWN_NUMBERS), (x) => formatNumber(x, 2));
    return `${this.tokens[row]}: ${numbers.join("  ")} …`;
  }
}

function mapSize({ rows, columns }) {
  const cell = Math.min(14, MAP_SIDE / Math.max(rows, columns));
  return [Math.max(8, columns * cell), Math.max(8, rows * cell)];
}
