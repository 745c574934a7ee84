// What every drawing on a canvas needs: sharp pixels, the page's fonts, labels that fit.

export const FONT = "system-ui, 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif";
export const LONGEST_LABEL = 110;
const MOST_PIXELS = 12000; // along a side; browsers refuse much larger canvases

/** Gives a canvas a size in CSS pixels and returns its context, scaled for the screen. */
export function prepare(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, MOST_PIXELS / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** The text, cut with an ellipsis where it is wider than it may be. */
export function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text);
  while (characters.length > 1 && context.measureText(`${characters.join("")}…`).width > width) characters.pop();
  return `${characters.join("")}…`;
}

/** How wide the widest of these labels is, up to a limit. */
export function widest(context, labels, limit) {
  return Math.min(limit, labels.reduce((most, label) => Math.max(most, context.measureText(label).width), 0));
}

/** The page's own colours, by the names its style sheet gives them. */
export function pageColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { text: read("--text"), faint: read("--faint"), accent: read("--accent"), paper: read("--card") };
}
