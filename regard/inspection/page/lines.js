// A map as lines: the tokens that look on the left, those that are looked at on the right, and a line for every look.

import { FONT, LONGEST_LABEL, fit, pageColours, prepare, widest } from "./canvas.js";

const FAINTEST = 0.08; // of the strongest weight of its row; weaker lines are drawn only for the token pointed at
const TALLEST = 9000;

/** Lines between two columns of tokens on a canvas. */
export class Lines {
  constructor(canvas, onPoint) {
    this.canvas = canvas;
    canvas.addEventListener("pointermove", (event) => onPoint(this.locate(event)));
    canvas.addEventListener("pointerdown", (event) => onPoint(this.locate(event)));
    canvas.addEventListener("pointerleave", () => onPoint(null));
  }

  show(map, rows, columns, room) {
    Object.assign(this, { map, rows, columns });
    const measure = this.canvas.getContext("2d");
    measure.font = `13px ${FONT}`;
    const most = Math.max(map.rows, map.columns);
    this.step = Math.max(3, Math.min(26, TALLEST / most));
    this.left = Math.ceil(widest(measure, rows, LONGEST_LABEL)) + 10;
    this.right = Math.ceil(widest(measure, columns, LONGEST_LABEL)) + 10;
    this.width = Math.max(this.left + this.right + 60, Math.min(room, this.left + this.right + 220));
    this.height = most * this.step + 8;
    this.draw(null);
  }

  locate(event) {
    if (!this.map) return null;
    const place = Math.floor((event.offsetY - 4) / this.step);
    if (place < 0) return null;
    if (event.offsetX < this.width / 2) return place < this.map.rows ? { row: place } : null;
    return place < this.map.columns ? { column: place } : null;
  }

  draw(point) {
    const context = prepare(this.canvas, this.width, this.height);
    const ink = pageColours();
    context.strokeStyle = ink.accent;
    context.lineCap = "round";
    for (let row = 0; row < this.map.rows; row++) {
      if (point?.row === undefined || point.row === row) this.drawRow(context, row, point);
    }
    context.globalAlpha = 1;
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(13 / this.step));
    const write = (labels, pointed, align, x) =>
      labels.forEach((label, place) => {
        if (place % every && place !== pointed) return;
        context.font = `${place === pointed ? "600 " : ""}13px ${FONT}`;
        context.fillStyle = place === pointed ? ink.accent : ink.text;
        context.textAlign = align;
        context.fillText(fit(context, label, LONGEST_LABEL), x, this.middle(place));
      });
    write(this.rows, point?.row, "right", this.left - 6);
    write(this.columns, point?.column, "left", this.width - this.right + 6);
  }

  drawRow(context, row, point) {
    const { map, left, width, right } = this;
    const weights = map.values.subarray(row * map.columns, (row + 1) * map.columns);
    const least = point?.row === row ? 0.002 : FAINTEST * weights.reduce((a, b) => Math.max(a, Math.abs(b) || 0), 0);
    const x = [left, (left + width - right) / 2, width - right];
    weights.forEach((weight, column) => {
      const size = Math.abs(weight) / map.high;
      if (!(Math.abs(weight) >= least) || size < 0.01) return;
      if (point?.column !== undefined && point.column !== column) return;
      context.globalAlpha = Math.min(1, 0.12 + 0.88 * size);
      context.lineWidth = 0.6 + 3.4 * size;
      context.beginPath();
      context.moveTo(x[0], this.middle(row));
      context.bezierCurveTo(x[1], this.middle(row), x[1], this.middle(column), x[2], this.middle(column));
      context.stroke();
    });
  }

  middle(place) {
    return 4 + (place + 0.5) * this.step;
  }
}
