// A map as a matrix: one row per query, one column per key.

import { FONT, MAX_LABEL_WIDTH, maxWidth, pageColours, prepare, truncate } from "./canvas.js";
import { shareOf, shrink } from "./maps.js";

const LABEL_ANGLE = Math.PI / 3.4; // of the column labels

/** Returns a canvas with one pixel per weight. */
export function paint(map, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = map.columns;
  canvas.height = map.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(map.columns, map.rows);
  for (let i = 0; i < map.values.length; i++) {
    if (Number.isNaN(map.values[i])) continue; // masked weights are transparent
    const colour = 4 * Math.round(255 * Math.min(1, Math.max(0, shareOf(map, map.values[i]))));
    image.data.set(scale.subarray(colour, colour + 4), 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Draws a map as a small square. */
export function drawThumbnail(canvas, map, scale, size) {
  const context = prepare(canvas, size, size);
  context.imageSmoothingEnabled = false;
  context.drawImage(paint(shrink(map, size), scale), 0, 0, size, size);
}

/** A matrix with labels. Calls `onPoint` with {row, column}, or null. */
export class Matrix {
  constructor(canvas, onPoint) {
    this.canvas = canvas;
    canvas.addEventListener("pointermove", (event) => onPoint(this.locate(event)));
    canvas.addEventListener("pointerdown", (event) => onPoint(this.locate(event)));
    canvas.addEventListener("pointerleave", () => onPoint(null));
  }

  show(map, rows, columns, scale, availableWidth, zoom = 1) {
    Object.assign(this, { map, rows, columns, image: paint(map, scale) });
    const context = this.canvas.getContext("2d");
    context.font = `13px ${FONT}`;
    const labelWidth = maxWidth(context, columns, MAX_LABEL_WIDTH);
    this.left = Math.ceil(maxWidth(context, rows, MAX_LABEL_WIDTH)) + 10;
    this.top = Math.ceil(labelWidth * Math.sin(LABEL_ANGLE)) + 16;
    this.right = Math.ceil(labelWidth * Math.cos(LABEL_ANGLE)) + 6;
    const fittingCell = (availableWidth - this.left - this.right) / map.columns;
    this.cell = Math.max(2, Math.min(30, fittingCell)) * zoom;
    this.cell = this.cell >= 6 ? Math.floor(this.cell) : this.cell;
    this.draw(null);
  }

  /** Returns the row and column under the pointer, or null. */
  locate(event) {
    if (!this.map) return null;
    const row = Math.floor((event.offsetY - this.top) / this.cell);
    const column = Math.floor((event.offsetX - this.left) / this.cell);
    const inside = row >= 0 && row < this.map.rows && column >= 0 && column < this.map.columns;
    return inside ? { row, column } : null;
  }

  /** Draws the matrix and highlights `point`, {row, column}; one of them may be undefined. */
  draw(point) {
    const { map, cell, left, top } = this;
    const width = left + map.columns * cell + this.right;
    const context = prepare(this.canvas, Math.ceil(width), Math.ceil(top + map.rows * cell + 4));
    const colours = pageColours();
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, left, top, map.columns * cell, map.rows * cell);
    if (cell >= 10) this.drawGridLines(context, colours.paper);
    context.strokeStyle = colours.faint;
    context.globalAlpha = 0.5;
    context.strokeRect(left - 0.5, top - 0.5, map.columns * cell + 1, map.rows * cell + 1);
    context.globalAlpha = 1;
    const step = Math.max(1, Math.ceil(13 / cell));
    // Labels are skipped if they would overlap; next to a highlighted label, only that one is drawn.
    const shown = (index, pointed) => (pointed === undefined ? index % step === 0 : step === 1 || index === pointed);
    context.textBaseline = "middle";
    this.rows.forEach((label, row) => {
      if (shown(row, point?.row)) this.drawRowLabel(context, colours, label, row, row === point?.row);
    });
    this.columns.forEach((label, column) => {
      if (shown(column, point?.column)) this.drawColumnLabel(context, colours, label, column, column === point?.column);
    });
    if (point) this.drawHighlight(context, colours, point);
  }

  drawGridLines(context, colour) {
    context.fillStyle = colour;
    for (let row = 1; row < this.map.rows; row++) {
      context.fillRect(this.left, this.top + row * this.cell - 0.5, this.map.columns * this.cell, 1);
    }
    for (let column = 1; column < this.map.columns; column++) {
      context.fillRect(this.left + column * this.cell - 0.5, this.top, 1, this.map.rows * this.cell);
    }
  }

  drawRowLabel(context, colours, label, row, pointed) {
    context.font = `${pointed ? "600 " : ""}13px ${FONT}`;
    context.fillStyle = pointed ? colours.accent : colours.text;
    context.textAlign = "right";
    context.fillText(truncate(context, label, MAX_LABEL_WIDTH), this.left - 6, this.top + (row + 0.5) * this.cell);
  }

  drawColumnLabel(context, colours, label, column, pointed) {
    context.save();
    context.translate(this.left + (column + 0.5) * this.cell, this.top - 6);
    context.rotate(-LABEL_ANGLE);
    context.font = `${pointed ? "600 " : ""}13px ${FONT}`;
    context.fillStyle = pointed ? colours.accent : colours.text;
    context.textAlign = "left";
    context.fillText(truncate(context, label, MAX_LABEL_WIDTH), 0, 0);
    context.restore();
  }

  drawHighlight(context, colours, { row, column }) {
    const { left, top, cell, map } = this;
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    if (row !== undefined) context.strokeRect(left, top + row * cell, map.columns * cell, cell);
    if (column !== undefined) context.strokeRect(left + column * cell, top, cell, map.rows * cell);
  }
}
