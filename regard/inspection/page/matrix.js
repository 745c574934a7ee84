// A map as a matrix: one row per query, one column per key.

import { FONT, MAX_LABEL_WIDTH, maxWidth, pageColours, prepare, truncate } from "./canvas.js";
import { shareOf, shrink } from "./maps.js";
import { moveIndex } from "./pointing.js";

const LABEL_ANGLE = Math.PI / 3.4; // of the column labels
const MIN_CELL = 2, MAX_CELL = 44;
const READABLE_CELL = 14; // cells are stretched in one direction at most up to this size
const MIN_HEIGHT = 300;

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

/** A matrix with labels, whose cells are pointed at with `pointing`. */
export class Matrix {
  constructor(canvas, pointing) {
    this.canvas = canvas;
    pointing.listen(canvas, this);
  }

  /** Shows a map; `image` has one pixel per cell and is by default the map in the colours of the scale. */
  show(map, rows, columns, scale, availableWidth, zoom = 1, image = paint(map, scale)) {
    Object.assign(this, { map, rows, columns, image });
    const context = this.canvas.getContext("2d");
    context.font = `13px ${FONT}`;
    const labelWidth = maxWidth(context, columns, MAX_LABEL_WIDTH);
    this.left = Math.ceil(maxWidth(context, rows, MAX_LABEL_WIDTH)) + 10;
    this.top = Math.ceil(labelWidth * Math.sin(LABEL_ANGLE)) + 16;
    this.right = Math.ceil(labelWidth * Math.cos(LABEL_ANGLE)) + 6;
    const [width, height] = cellSize(map, availableWidth - this.left - this.right, pictureHeight() - this.top);
    const round = (size) => (size * zoom >= 6 ? Math.floor(size * zoom) : size * zoom);
    Object.assign(this, { cellWidth: round(width), cellHeight: round(height) });
    this.draw(null);
  }

  /** Returns the row and column under the pointer, or null. */
  locate(event) {
    if (!this.map) return null;
    const row = Math.floor((event.offsetY - this.top) / this.cellHeight);
    const column = Math.floor((event.offsetX - this.left) / this.cellWidth);
    const inside = row >= 0 && row < this.map.rows && column >= 0 && column < this.map.columns;
    return inside ? { row, column } : null;
  }

  /** Returns the next cell in a direction. */
  move(point, x, y) {
    const { rows, columns } = this.map;
    return { row: moveIndex(point?.row, point ? y : 0, rows), column: moveIndex(point?.column, point ? x : 0, columns) };
  }

  /** Returns the left, top, width and height of a cell. */
  boxOf({ row, column }) {
    return [this.left + column * this.cellWidth, this.top + row * this.cellHeight, this.cellWidth, this.cellHeight];
  }

  /** Draws the matrix and highlights `point`, {row, column}; one of them may be undefined. */
  draw(point) {
    const { map, cellWidth, cellHeight, left, top } = this;
    const [width, height] = [map.columns * cellWidth, map.rows * cellHeight];
    const context = prepare(this.canvas, Math.ceil(left + width + this.right), Math.ceil(top + height + 4));
    const colours = pageColours();
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, left, top, width, height);
    if (Math.min(cellWidth, cellHeight) >= 10) this.drawGridLines(context, colours.paper);
    context.strokeStyle = colours.faint;
    context.globalAlpha = 0.5;
    context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
    context.globalAlpha = 1;
    // Labels are skipped if they would overlap; next to a highlighted label, only that one is drawn.
    const shown = (index, pointed, cell) => {
      const step = Math.max(1, Math.ceil(13 / cell));
      return pointed === undefined ? index % step === 0 : step === 1 || index === pointed;
    };
    context.textBaseline = "middle";
    this.rows.forEach((label, row) => {
      if (shown(row, point?.row, cellHeight)) this.drawRowLabel(context, colours, label, row, row === point?.row);
    });
    this.columns.forEach((label, column) => {
      if (shown(column, point?.column, cellWidth)) this.drawColumnLabel(context, colours, label, column, column === point?.column);
    });
    if (point) this.drawHighlight(context, colours, point);
  }

  drawGridLines(context, colour) {
    const { map, left, top, cellWidth, cellHeight } = this;
    context.fillStyle = colour;
    for (let row = 1; row < map.rows; row++) {
      context.fillRect(left, top + row * cellHeight - 0.5, map.columns * cellWidth, 1);
    }
    for (let column = 1; column < map.columns; column++) {
      context.fillRect(left + column * cellWidth - 0.5, top, 1, map.rows * cellHeight);
    }
  }

  drawRowLabel(context, colours, label, row, pointed) {
    context.font = `${pointed ? "600 " : ""}13px ${FONT}`;
    context.fillStyle = pointed ? colours.accent : colours.text;
    context.textAlign = "right";
    context.fillText(truncate(context, label, MAX_LABEL_WIDTH), this.left - 6, this.top + (row + 0.5) * this.cellHeight);
  }

  drawColumnLabel(context, colours, label, column, pointed) {
    context.save();
    context.translate(this.left + (column + 0.5) * this.cellWidth, this.top - 6);
    context.rotate(-LABEL_ANGLE);
    context.font = `${pointed ? "600 " : ""}13px ${FONT}`;
    context.fillStyle = pointed ? colours.accent : colours.text;
    context.textAlign = "left";
    context.fillText(truncate(context, label, MAX_LABEL_WIDTH), 0, 0);
    context.restore();
  }

  drawHighlight(context, colours, { row, column }) {
    const { left, top, cellWidth, cellHeight, map } = this;
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    if (row !== undefined) context.strokeRect(left, top + row * cellHeight, map.columns * cellWidth, cellHeight);
    if (column !== undefined) context.strokeRect(left + column * cellWidth, top, cellWidth, map.rows * cellHeight);
  }
}

/** Returns the height that a picture should have at most: most of the window. */
export function pictureHeight() {
  return Math.max(MIN_HEIGHT, 0.7 * innerHeight);
}

/** Returns the width and height of a cell: square cells if they fit, otherwise cells that keep a long map readable. */
function cellSize(map, availableWidth, availableHeight) {
  const fit = (available, count) => Math.max(MIN_CELL, Math.min(MAX_CELL, available / count));
  const [width, height] = [fit(availableWidth, map.columns), fit(availableHeight, map.rows)];
  const square = Math.min(width, height);
  const limit = Math.max(square, READABLE_CELL);
  return [Math.min(width, limit), Math.min(height, limit)];
}
