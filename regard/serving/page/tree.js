// A beam as a picture: a column a step, the highest score above; lines join a hypothesis with what continues it.

const SVG = "http://www.w3.org/2000/svg";
const COLUMN = 132, ROW = 34, WIDTH = 100, HEIGHT = 26, MARGIN = 8, ROOM = 7;

/** Draws into `place`; `onPoint(node, fate)`. The result's `show(step, follow)` hides what came later, and what it decided. */
export function drawTree(place, nodes, onPoint) {
  const columns = [];
  nodes.forEach((node, i) => (columns[node.step] ??= []).push(i));
  const rank = (node) => (node.score === null ? -Infinity : node.score);
  const spots = new Map();
  columns.forEach((column, step) => {
    column.sort((a, b) => rank(nodes[b]) - rank(nodes[a]) || 0); // two of −∞ differ by NaN
    column.forEach((i, row) => spots.set(i, { x: MARGIN + step * COLUMN, y: MARGIN + row * ROW }));
  });
  const width = columns.length * COLUMN + MARGIN;
  const height = Math.max(...columns.map((column) => column.length)) * ROW + MARGIN;
  const picture = draw("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const path = new Set(winningPath(nodes));
  const last = columns.length - 1;
  let now = last;
  const drawn = [];
  const steps = columns.map((column) => {
    const group = draw("g", {});
    for (const i of column) {
      const node = nodes[i];
      const parts = drawNode(node, spots.get(i), spots.get(node.parent), () => onPoint(node, fateAt(node, now, last)));
      group.append(...parts);
      drawn.push([i, parts]);
    }
    picture.append(group);
    return group;
  });
  place.append(picture);
  return {
    show(step, follow = true) {
      now = step;
      for (const [i, parts] of drawn) {
        const kind = fateAt(nodes[i], step, last).split(":")[0];
        for (const part of parts) part.setAttribute("class", `${part.dataset.part} ${kind}${step === last && path.has(i) ? " won" : ""}`);
      }
      steps.forEach((group, at) => group.classList.toggle("later", at > step));
      if (!follow) return;
      const right = MARGIN + (step + 1) * COLUMN;
      if (right > place.scrollLeft + place.clientWidth || right - COLUMN < place.scrollLeft) {
        place.scrollLeft = Math.max(0, right - place.clientWidth / 2);
      }
    },
  };
}

/** What had become of a hypothesis by a step: who is dropped later is still kept, and until the end nobody has won. */
function fateAt({ fate, step: born }, step, last) {
  if (step === last) return fate;
  if (fate.startsWith("ended")) return "ended: open";
  return fate === "dropped: its continuations were outbid" && step === born ? "kept" : fate;
}

/** Its edge and its box, without a class but with `data-part`, to which its fate is added. */
function drawNode(node, spot, parent, onPoint) {
  const drawn = [];
  if (parent) {
    const [x1, y1, x2, y2] = [parent.x + WIDTH, parent.y + HEIGHT / 2, spot.x, spot.y + HEIGHT / 2];
    const middle = (x1 + x2) / 2;
    drawn.push(draw("path", { "data-part": "edge", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }));
  }
  const group = draw("g", { "data-part": "node", tabindex: "0", role: "button" });
  const box = draw("rect", { x: spot.x, y: spot.y, width: WIDTH, height: HEIGHT, rx: 7 });
  const name = draw("text", { x: spot.x + 8, y: spot.y + 17.5 });
  name.textContent = shorten(node.token);
  const score = draw("text", { x: spot.x + WIDTH - 6, y: spot.y + 17.5, class: "score" });
  score.textContent = node.score === null ? "−∞" : node.score.toFixed(2);
  group.setAttribute("aria-label", `${node.token} ${score.textContent}`);
  group.append(box, name, score);
  for (const event of ["pointerenter", "focus", "click"]) group.addEventListener(event, onPoint);
  drawn.push(group);
  return drawn;
}

/** As much of a piece as fits its box; Chinese is twice as wide. */
function shorten(piece) {
  const letters = Array.from(piece);
  const room = (count) => letters.slice(0, count).reduce((sum, letter) => sum + (letter.codePointAt(0) > 0x2e7f ? 2 : 1), 0);
  if (room(letters.length) <= ROOM) return piece;
  let count = letters.length;
  while (count > 1 && room(count) > ROOM - 1) count--;
  return `${letters.slice(0, count).join("")}…`;
}

/** The numbers of the nodes that lead to the translation, the last first. */
export function winningPath(nodes) {
  const ends = nodes.map((node, i) => i).filter((i) => nodes[i].fate === "ended");
  const best = ends.sort((a, b) => nodes[b].score - nodes[a].score)[0];
  const path = [];
  for (let i = best ?? -1; i >= 0; i = nodes[i].parent) path.push(i);
  return path;
}

function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
