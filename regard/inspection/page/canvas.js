// Shared helpers for drawing on canvases: device pixel ratio, fonts, labels and theme colours.

export const FONT = "system-ui, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif";
export const MAX_LABEL_WIDTH = 110;
const MAX_SIDE = 12000; // in device pixels; browsers reject much larger canvases

/** Sets the size of a canvas in CSS pixels and returns its context, scaled for the screen. */
export function prepare(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, MAX_SIDE / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Truncates a text to a width, with an ellipsis. */
export function truncate(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text);
  while (characters.length > 1 && context.measureText(`${characters.join("")}…`).width > width) characters.pop();
  return `${characters.join("")}…`;
}

/** Returns the width of the widest label, up to a limit. */
export function maxWidth(context, labels, limit) {
  return Math.min(limit, labels.reduce((width, label) => Math.max(width, context.measureText(label).width), 0));
}

/** Returns the colours of the current theme, as defined in the style sheet. */
export function pageColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { text: read("--text"), faint: read("--faint"), accent: read("--accent"), paper: read("--card") };
}
