// Colour scales. Lightness carries the value, so that the order survives grey print and colour blindness; signed
// values use blue and orange, which most readers with colour blindness can distinguish.

const LIGHT = [[247, 249, 252], [163, 197, 230], [58, 121, 190], [8, 40, 100]];
const DARK = [[27, 31, 40], [38, 84, 140], [92, 168, 214], [244, 250, 255]];
const SIGNED_LIGHT = [[150, 70, 0], [232, 163, 92], [247, 249, 252], [110, 160, 212], [8, 48, 110]];
const SIGNED_DARK = [[255, 190, 110], [160, 92, 30], [27, 31, 40], [44, 98, 158], [170, 214, 255]];
const GAMMA = 0.7; // makes small weights visible

/** The scales that have been computed; a table of vectors asks for one a thousand times. */
const scales = new Map();

/** Returns 256 colours as RGBA bytes, from 0 to the maximum, or from the most negative to the most positive value. */
export function makeScale(dark, signed) {
  const stops = signed ? (dark ? SIGNED_DARK : SIGNED_LIGHT) : dark ? DARK : LIGHT;
  if (!scales.has(stops)) scales.set(stops, computeScale(stops, signed));
  return scales.get(stops);
}

function computeScale(stops, signed) {
  const bytes = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    bytes.set([...interpolate(stops, signed ? i / 255 : (i / 255) ** GAMMA), 255], 4 * i);
  }
  return bytes;
}

/** Returns the CSS colour of a share from 0 to 1. */
export function colourOf(scale, share) {
  const i = 4 * Math.round(255 * Math.min(1, Math.max(0, share)));
  return `rgb(${scale[i]} ${scale[i + 1]} ${scale[i + 2]})`;
}

/** Returns the colour of text on the colour of this share, with a contrast of at least 4.5. */
export function textColourOn(scale, share) {
  const i = 4 * Math.round(255 * Math.min(1, Math.max(0, share)));
  const [red, green, blue] = [scale[i], scale[i + 1], scale[i + 2]].map(linear);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 ? "#fff" : "#000";
}

function linear(byte) {
  const value = byte / 255;
  return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
}

function interpolate(stops, share) {
  const position = share * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(position));
  return stops[first].map((from, k) => Math.round(from + (stops[first + 1][k] - from) * (position - first)));
}
