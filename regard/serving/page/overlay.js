// A picture, a map laid over it, and frames around parts of it.

import { prepare } from "./canvas.js";
import { make } from "./make.js";
import { paint } from "./matrix.js";

export const SIDE = Math.min(320, innerWidth - 48), SMALL = 84;
const DARKEST = 0.86;
/** Colours that leave in the light what got most, and put the rest in the dark. */
const SHADE = Uint8ClampedArray.from({ length: 1024 }, (_, i) => (i % 4 < 3 ? 8 : 255 * DARKEST * (1 - (i >> 2) / 255)));

/** Pixels of the server as a canvas. */
export function pictureOf({ shape: [height, width, channels], values }) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = values[channels * i + (channels === 1 ? 0 : c)];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * The picture with a map over it. `cell` is the height and width in pixels of the picture that a weight stands for, so
 * that a grid may go beyond it; `frames` are [first row, first column, last row, last column], drawn one in the other.
 */
export function drawOver(picture, { map = null, cell = [1, 1], side = SIDE, frames = [], smooth = true } = {}) {
  const canvas = make("canvas", { class: "picture-canvas" });
  const context = prepare(canvas, side, side);
  context.imageSmoothingEnabled = false;
  context.drawImage(picture, 0, 0, side, side);
  const [high, wide] = [(side * cell[0]) / picture.height, (side * cell[1]) / picture.width];
  if (map) {
    context.imageSmoothingEnabled = smooth;
    context.drawImage(paint(map, SHADE), 0, 0, map.columns * wide, map.rows * high);
  }
  for (const [top, left, bottom, right] of frames) {
    const place = [left * wide, top * high, (right + 1 - left) * wide, (bottom + 1 - top) * high];
    context.lineWidth = 4; // dark below, so that the frame is seen on any picture
    context.strokeStyle = "#111";
    context.strokeRect(...place);
    context.lineWidth = 2;
    context.strokeStyle = "#ff9a3c";
    context.strokeRect(...place);
  }
  return canvas;
}

/** The row and column of the cell of a picture that a click on its canvas meets. */
export function cellAt(event, picture, cell) {
  const { clientWidth, clientHeight } = event.currentTarget;
  const place = (offset, size, pixels, step) => Math.floor((Math.min(Math.max(offset, 0), size - 1) / size) * (pixels / step));
  return [place(event.offsetY, clientHeight, picture.height, cell[0]), place(event.offsetX, clientWidth, picture.width, cell[1])];
}
