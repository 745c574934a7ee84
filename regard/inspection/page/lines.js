// A map as lines: queries on the left, keys on the right, and one line per weight.

import { FONT, MAX_LABEL_WIDTH, maxWidth, pageColours, prepare, truncate } from "./canvas.js";
import { pictureHeight } from "./matrix.js";
import { moveIndex } from "./pointing.js";

const MIN_SHARE = 0.08; // of the largest weight of a row; weaker lines are drawn only for the row under the pointer
const MIN_STEP = 3, MAX_STEP = 26;
const MAX_LINES = 3000, MIN_LINES = 3; // lines of the whole map, and of a row; more take seconds and hide each other

/** Lines between two columns of tokens, which are pointed at with `pointing`. */
export class Lines {
  constructor(canvas, pointing) {
    this.canvas = canvas;
    pointing.listen(canvas, this);
  }

  /** Shows the weights of a map. `layers` are the maps to draw, each in a colour; by default only this one. */
  show(map, rows, columns, availableWidth, zoom = 1, layers = [{ map }]) {
    Object.assign(this, { map, rows, columns, layers });
    const context = this.canvas.getContext("2d");
    context.font = `13px ${FONT}`;
    const tokens = Math.max(map.rows, map.columns);
    this.step = Math.max(MIN_STEP, Math.min(MAX_STEP, pictureHeight() / tokens) * zoom);
    this.left = Math.ceil(maxWidth(context, rows, MAX_LABEL_WIDTH)) + 10;
    this.right = Math.ceil(maxWidth(context, columns, MAX_LABEL_WIDTH)) + 10;
    this.width = Math.max(this.left + this.right + 60, Math.min(availableWidth, this.left + this.right + 220));
    this.height = tokens * this.step + 8;
    this.draw(null);
  }

  locate(event) {
    if (!this.map) return null;
    const index = Math.floor((event.offsetY - 4) / this.step);
    if (index < 0) return null;
    if (event.offsetX < this.width / 2) return index < this.map.rows ? { row: index } : null;
    return index < this.map.columns ? { column: index } : null;
  }

  /** Returns the next token in a direction: up or down in its column, or at the same height of the other one. */
  move(point, x, y) {
    const isRow = x ? x < 0 : point?.row !== undefined || point?.column === undefined;
    const index = moveIndex(point?.row ?? point?.column, point ? y : 0, isRow ? this.map.rows : this.map.columns);
    return isRow ? { row: index } : { column: index };
  }

  /** Returns the left, top, width and height of a token. */
  boxOf({ row, column }) {
    return [row === undefined ? this.width / 2 : 0, this.centre(row ?? column) - this.step / 2, this.width / 2, this.step];
  }

  draw(point) {
    const context = prepare(this.canvas, this.width, this.height);
    const colours = pageColours();
    context.lineCap = "round";
    const most = Math.max(MIN_LINES, Math.floor(MAX_LINES / (this.map.rows * this.layers.length)));
    for (const { map, colour } of this.layers) {
      context.strokeStyle = colour ?? colours.accent;
      for (let row = 0; row < map.rows; row++) {
        if (point?.row === undefined || point.row === row) this.drawRow(context, map, row, point, most);
      }
    }
    context.globalAlpha = 1;
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(13 / this.step)); // labels are skipped if they would overlap
    const drawLabels = (labels, pointed, align, x) =>
      labels.forEach((label, index) => {
        if (index % every && index !== pointed) return;
        context.font = `${index === pointed ? "600 " : ""}13px ${FONT}`;
        context.fillStyle = index === pointed ? colours.accent : colours.text;
        context.textAlign = align;
        context.fillText(truncate(context, label, MAX_LABEL_WIDTH), x, this.centre(index));
      });
    drawLabels(this.rows, point?.row, "right", this.left - 6);
    drawLabels(this.columns, point?.column, "left", this.width - this.right + 6);
  }

  /** Draw the lines of a row: all of a row under the pointer, otherwise the `most` strongest. */
  drawRow(context, map, row, point, most) {
    const { left, width, right } = this;
    const weights = map.values.subarray(row * map.columns, (row + 1) * map.columns);
    const sorted = weights.map((weight) => Math.abs(weight) || 0).sort();
    const least = point ? 0 : sorted.at(-most) ?? 0;
    const threshold = point?.row === row ? 0.002 : Math.max(least, MIN_SHARE * sorted.at(-1));
    const x = [left, (left + width - right) / 2, width - right];
    weights.forEach((weight, column) => {
      const share = Math.abs(weight) / map.high;
      if (!(Math.abs(weight) >= threshold) || share < 0.01) return;
      if (point?.column !== undefined && point.column !== column) return;
      context.globalAlpha = Math.min(1, 0.12 + 0.88 * share);
      context.lineWidth = 0.6 + 3.4 * share;
      context.beginPath();
      context.moveTo(x[0], this.centre(row));
      context.bezierCurveTo(x[1], this.centre(row), x[1], this.centre(column), x[2], this.centre(column));
      context.stroke();
    });
  }

  centre(index) {
    return 4 + (index + 0.5) * this.step;
  }
}
