// Images with an attention map drawn over them, and frames around patches.

import { prepare } from "./canvas.js";
import { create } from "./dom.js";
import { paint } from "./matrix.js";
import { mapRows, setData } from "./panel_data.js";
import { moveIndex } from "./pointing.js";

export const LARGE = Math.min(320, innerWidth - 48);
export const THUMBNAIL = 84;
const MAX_OPACITY = 0.86;
/** RGBA colour scale of a shadow: transparent for the largest weight, dark for the smallest. */
const SHADOW_SCALE = Uint8ClampedArray.from({ length: 1024 }, (_, i) =>
  i % 4 < 3 ? 8 : 255 * MAX_OPACITY * (1 - (i >> 2) / 255));

/** Draw an array of pixels, (height, width, channels), on a new canvas. */
export function createImage({ shape: [height, width, channels], values }) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const data = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) data.data[4 * i + c] = values[channels * i + (channels === 1 ? 0 : c)];
    data.data[4 * i + 3] = 255;
  }
  context.putImageData(data, 0, 0);
  return canvas;
}

/**
 * Draw an image with a map over it on a new square canvas. `patchSize` is the height and width of a patch in image
 * pixels; the grid of patches may extend beyond the image. `frames` are [first row, first column, last row, last column].
 */
export function drawOverlay(image, { map = null, patchSize = [1, 1], side = LARGE, frames = [], smooth = true } = {}) {
  const canvas = create("canvas", { class: "picture-canvas" });
  const context = prepare(canvas, side, side);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, side, side);
  const [patchHeight, patchWidth] = [(side * patchSize[0]) / image.height, (side * patchSize[1]) / image.width];
  if (map) {
    context.imageSmoothingEnabled = smooth;
    context.drawImage(paint(map, SHADOW_SCALE), 0, 0, map.columns * patchWidth, map.rows * patchHeight);
  }
  for (const [top, left, bottom, right] of frames) {
    const width = (right + 1 - left) * patchWidth;
    const height = (bottom + 1 - top) * patchHeight;
    // A bright line on a wider dark line is visible on any image.
    for (const [lineWidth, colour] of [[4, "#111"], [2, "#ff9a3c"]]) {
      Object.assign(context, { lineWidth, strokeStyle: colour });
      context.strokeRect(left * patchWidth, top * patchHeight, width, height);
    }
  }
  if (map) setData(canvas, () => mapRows(map));
  return canvas;
}

/**
 * Let a click and the arrow keys select a patch: `select([row, column])`. The keys start from `cell`, the selected patch, or
 * from the first one if it is null.
 */
export function makeSelectable(canvas, image, patchSize, [rows, columns], cell, select, label) {
  let current = cell; // keys may follow each other before the picture has changed
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", label);
  canvas.addEventListener("click", (event) => select(patchAt(event, image, patchSize)));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    current = [moveIndex(current?.[0], step[0], rows), moveIndex(current?.[1], step[1], columns)];
    select(current);
  });
}

/** Return the row and column of the patch at a pointer event on the canvas of an image. */
function patchAt(event, image, patchSize) {
  const { clientWidth, clientHeight } = event.currentTarget;
  const index = (offset, size, pixels, patchPixels) =>
    Math.floor((Math.min(Math.max(offset, 0), size - 1) / size) * (pixels / patchPixels));
  return [
    index(event.offsetY, clientHeight, image.height, patchSize[0]),
    index(event.offsetX, clientWidth, image.width, patchSize[1]),
  ];
}

/** Create a figure with a title, a canvas and an optional caption. */
export function createFigure(className, title, canvas, caption) {
  const figure = create("figure", { class: `plain ${className}` }, create("h3", { text: title }), canvas);
  if (caption) figure.append(create("figcaption", { class: "hint", text: caption }));
  return figure;
}
