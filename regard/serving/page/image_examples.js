// Example images, drawn in the browser: shapes at different depths, so that two views of a scene differ by parallax.

const SIDE = 128;
/** Shapes of each example from back to front: [kind, x, y, size, colour, shift between the views in pixels]. */
const SCENES = {
  apple: [
    ["ground", 0, 84, 0, "#7a5a3a", 2],
    ["circle", 62, 68, 30, "#c8322b", 9],
    ["circle", 50, 56, 7, "#ef8a7e", 9],
    ["box", 60, 30, 5, "#5b3a1e", 9],
    ["circle", 76, 36, 8, "#4b8f3a", 10],
  ],
  blocks: [
    ["ground", 0, 90, 0, "#8a8f98", 2],
    ["box", 30, 70, 26, "#2f6fbd", 4],
    ["box", 96, 66, 22, "#e0a52e", 7],
    ["box", 66, 88, 20, "#b6423c", 14],
  ],
  night: [
    ["ground", 0, 100, 0, "#20304a", 1],
    ["circle", 96, 28, 12, "#f3e9b8", 0],
    ["box", 34, 82, 18, "#45546e", 5],
    ["box", 74, 86, 24, "#2b3a54", 10],
    ["circle", 34, 78, 3, "#ffd75e", 5],
    ["circle", 78, 82, 3, "#ffd75e", 10],
  ],
};
const SKIES = { apple: ["#dfeaf4", "#f5efe2"], blocks: ["#bcd3ea", "#e9eef3"], night: ["#0b1226", "#2a3b63"] };

export const EXAMPLES = Object.keys(SCENES);

/** Draw a view, 0 or 1, of an example, and return it as a PNG file. */
export async function drawExample(name, view) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: SIDE, height: SIDE });
  const context = canvas.getContext("2d");
  const sky = context.createLinearGradient(0, 0, 0, SIDE);
  SKIES[name].forEach((colour, i) => sky.addColorStop(i, colour));
  context.fillStyle = sky;
  context.fillRect(0, 0, SIDE, SIDE);
  for (const [kind, x, y, size, colour, shift] of SCENES[name]) {
    context.fillStyle = colour;
    const left = x - shift * view;
    if (kind === "ground") context.fillRect(0, y, SIDE, SIDE - y);
    else if (kind === "box") context.fillRect(left - size / 2, y - size / 2, size, size);
    else {
      context.beginPath();
      context.arc(left, y, size, 0, 2 * Math.PI);
      context.fill();
    }
  }
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  return new File([blob], view ? `${name}-2.png` : `${name}.png`, { type: "image/png" });
}
