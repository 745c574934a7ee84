// Colour scales. Lightness alone carries the value, so that order survives grey print and every kind of colour
// blindness; where values have a sign, blue and orange tell it, which all but a few readers can tell apart.

const PAPER_TO_INK = [[247, 249, 252], [163, 197, 230], [58, 121, 190], [8, 40, 100]];
const NIGHT_TO_LIGHT = [[27, 31, 40], [38, 84, 140], [92, 168, 214], [244, 250, 255]];
const SIGNED_LIGHT = [[150, 70, 0], [232, 163, 92], [247, 249, 252], [110, 160, 212], [8, 48, 110]];
const SIGNED_DARK = [[255, 190, 110], [160, 92, 30], [27, 31, 40], [44, 98, 158], [170, 214, 255]];
const LIFT = 0.7; // brings small weights out of the paper

/** 256 colours as RGBA bytes, from nothing to the most, or from the most negative to the most positive. */
export function makeScale(dark, signed) {
  const stops = signed ? (dark ? SIGNED_DARK : SIGNED_LIGHT) : dark ? NIGHT_TO_LIGHT : PAPER_TO_INK;
  const bytes = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    bytes.set([...mixStops(stops, signed ? i / 255 : (i / 255) ** LIFT), 255], 4 * i);
  }
  return bytes;
}

/** The colour of a share from 0 to 1, as CSS writes it. */
export function colourOf(scale, share) {
  const i = 4 * Math.round(255 * Math.min(1, Math.max(0, share)));
  return `rgb(${scale[i]} ${scale[i + 1]} ${scale[i + 2]})`;
}

/** Whether writing on the colour of this share should be light. */
export function needsLightText(scale, share) {
  const i = 4 * Math.round(255 * Math.min(1, Math.max(0, share)));
  return 0.3 * scale[i] + 0.59 * scale[i + 1] + 0.11 * scale[i + 2] < 140;
}

function mixStops(stops, share) {
  const place = share * (stops.length - 1);
  const first = Math.min(stops.length - 2, Math.floor(place));
  return stops[first].map((from, k) => Math.round(from + (stops[first + 1][k] - from) * (place - first)));
}
