// A map as a matrix: a row for every token that looks, a column for every token that is looked at.

import { FONT, LONGEST_LABEL, fit, pageColours, prepare, widest } from "./canvas.js";
import { shareOf, shrink } from "./maps.js";

const LEAN = Math.PI / 3.4; // the labels of the columns lean by so much

/** The bare map, one pixel a weight, to be drawn at any size. */
export function paint(map, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = map.columns;
  canvas.height = map.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(map.columns, map.rows);
  for (let i = 0; i < map.values.length; i++) {
    if (Number.isNaN(map.values[i])) continue; // stays transparent
    const colour = 4 * Math.round(255 * Math.min(1, Math.max(0, shareOf(map, map.values[i]))));
    image.data.set(scale.subarray(colour, colour + 4), 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Draws a map into a small square. */
export function drawThumbnail(canvas, map, scale, size) {
  const context = prepare(canvas, size, size);
  context.imageSmoothingEnabled = false;
  context.drawImage(paint(shrink(map, size), scale), 0, 0, size, size);
}

/** A matrix with its labels on a canvas. `room` is the width it should fit into; `zoom` makes cells larger. */
export class Matrix {
  constructor(canvas, onPoint) {
    this.canvas = canvas;
    canvas.addEventListener("pointermove", (event) => onPoint(this.locate(event)));
    canvas.addEventListener("pointerdown", (event) => onPoint(this.locate(event)));
    canvas.addEventListener("pointerleave", () => onPoint(null));
  }

  show(map, rows, columns, scale, room, zoom = 1) {
    Object.assign(this, { map, rows, columns, picture: paint(map, scale) });
    const measure = this.canvas.getContext("2d");
    measure.font = `13px ${FONT}`;
    const longest = widest(measure, columns, LONGEST_LABEL);
    this.left = Math.ceil(widest(measure, rows, LONGEST_LABEL)) + 10;
    this.top = Math.ceil(longest * Math.sin(LEAN)) + 16;
    this.right = Math.ceil(longest * Math.cos(LEAN)) + 6;
    const fitting = (room - this.left - this.right) / map.columns;
    this.cell = Math.max(2, Math.min(30, fitting)) * zoom;
    this.cell = this.cell >= 6 ? Math.floor(this.cell) : this.cell;
    this.draw(null);
  }

  /** Which row and column an event points at, or null. */
  locate(event) {
    if (!this.map) return null;
    const row = Math.floor((event.offsetY - this.top) / this.cell);
    const column = Math.floor((event.offsetX - this.left) / this.cell);
    const inside = row >= 0 && row < this.map.rows && column >= 0 && column < this.map.columns;
    return inside ? { row, column } : null;
  }

  /** Draws everything; `point` {row, column} is marked, either of which may be missing. */
  draw(point) {
    const { map, cell, left, top } = this;
    const width = left + map.columns * cell + this.right;
    const context = prepare(this.canvas, Math.ceil(width), Math.ceil(top + map.rows * cell + 4));
    const ink = pageColours();
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, left, top, map.columns * cell, map.rows * cell);
    if (cell >= 10) this.drawGaps(context, ink.paper);
    context.strokeStyle = ink.faint;
    context.globalAlpha = 0.5;
    context.strokeRect(left - 0.5, top - 0.5, map.columns * cell + 1, map.rows * cell + 1);
    context.globalAlpha = 1;
    const step = Math.max(1, Math.ceil(13 / cell));
    const shown = (index, pointed) => (pointed === undefined ? index % step === 0 : step === 1 || index === pointed);
    context.textBaseline = "middle";
    this.rows.forEach((label, row) => {
      if (shown(row, point?.row)) this.drawRowLabel(context, ink, label, row, row === point?.row);
    });
    this.columns.forEach((label, column) => {
      if (shown(column, point?.column)) this.drawColumnLabel(context, ink, label, column, column === point?.column);
    });
    if (point) this.drawPoint(context, ink, point);
  }

  drawGaps(context, colour) {
    context.fillStyle = colour;
    for (let row = 1; row < this.map.rows; row++) {
      context.fillRect(this.left, this.top + row * this.cell - 0.5, this.map.columns * this.cell, 1);
    }
    for (let column = 1; column < this.map.columns; column++) {
      context.fillRect(this.left + column * this.cell - 0.5, this.top, 1, this.map.rows * this.cell);
    }
  }

  drawRowLabel(context, ink, label, row, pointed) {
    context.font = `${pointed ? "600 " : ""}13px ${FONT}`;
    context.fillStyle = pointed ? ink.accent : ink.text;
    context.textAlign = "right";
    context.fillText(fit(context, label, LONGEST_LABEL), this.left - 6, this.top + (row + 0.5) * this.cell);
  }

  drawColumnLabel(context, ink, label, column, pointed) {
    context.save();
    context.translate(this.left + (column + 0.5) * this.cell, this.top - 6);
    context.rotate(-LEAN);
    context.font = `${pointed ? "600 " : ""}13px ${FONT}`;
    context.fillStyle = pointed ? ink.accent : ink.text;
    context.textAlign = "left";
    context.fillText(fit(context, label, LONGEST_LABEL), 0, 0);
    context.restore();
  }

  drawPoint(context, ink, { row, column }) {
    const { left, top, cell, map } = this;
    context.strokeStyle = ink.accent;
    context.lineWidth = 1.5;
    if (row !== undefined) context.strokeRect(left, top + row * cell, map.columns * cell, cell);
    if (column !== undefined) context.strokeRect(left + column * cell, top, cell, map.rows * cell);
  }
}
