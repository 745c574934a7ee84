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

/** Return a canvas with one pixel per weight, in which the colours of the heads are mixed. */
export function paintHeads(maps, heads, dark) {
  const [{ rows, columns }] = maps;
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const high = Math.max(...maps.map((map) => map.high));
  const paper = dark ? PAPER.dark : PAPER.light;
  for (let i = 0; i < rows * columns; i++) {
    const mixed = [...paper];
    maps.forEach((map, number) => {
      const share = Math.min(1, Math.abs(map.values[i] || 0) / high) ** GAMMA;
      const colour = COLOURS[heads[number] % COLOURS.length];
      // Like ink on white paper, or like light on a dark screen.
      for (let c = 0; c < 3; c++) {
        if (dark) mixed[c] = 255 - (255 - mixed[c]) * (1 - (share * colour[c]) / 255);
        else mixed[c] *= 1 - share * (1 - colour[c] / 255);
      }
    });
    image.data.set([...mixed, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
