// Several heads in one map, each in a colour of its own.

const COLOURS = [
  [0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233], [120, 94, 240], [128, 128, 128],
];
const GAMMA = 0.7; // makes small weights visible
const PAPER = { light: [255, 255, 255], dark: [27, 31, 40] };

/** Return the CSS colour of a head. */
export function colourOfHead(head) {
  return `rgb(${COLOURS[head % COLOURS.length].join(" ")})`;
}

/**
 * Return a canvas with one pixel per weight. Its colour is the mean of the colours of the heads, by their squared weights, and its
 * opacity is that of the largest weight, so that many heads are not darker than one.
 */
export function paintHeads(maps, heads, dark) {
  const [{ rows, columns }] = maps;
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const high = Math.max(...maps.map((map) => map.high));
  const paper = dark ? PAPER.dark : PAPER.light;
  const colours = heads.map((head) => COLOURS[head % COLOURS.length]);
  for (let i = 0; i < rows * columns; i++) {
    const weights = maps.map((map) => Math.abs(map.values[i] || 0));
    const total = weights.reduce((sum, weight) => sum + weight ** 2, 0) || 1;
    const opacity = Math.min(1, Math.max(...weights) / high) ** GAMMA;
    const mixed = paper.map((background, c) => {
      const mean = colours.reduce((sum, colour, number) => sum + (weights[number] ** 2 / total) * colour[c], 0);
      return background + opacity * (mean - background);
    });
    image.data.set([...mixed, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
