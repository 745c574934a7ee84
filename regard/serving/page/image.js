// Section: an image, its classes and what the model looked at; or two views and where a patch of one looks in the other.

import { ask } from "./api.js";
import { prepare } from "./canvas.js";
import { field, make, slider } from "./make.js";
import { paint } from "./matrix.js";
import { makeMap } from "./maps.js";
import { part } from "./packet.js";

export const section = { id: "image", needs: ["image", "views"], show };

const SIDE = 320, SMALL = 84;
const DARKEST = 0.86;
/** Colours that leave in the light what got most, and put the rest in the dark. */
const SHADE = Uint8ClampedArray.from({ length: 1024 }, (_, i) => (i % 4 < 3 ? 8 : 255 * DARKEST * (1 - (i >> 2) / 255)));
const kept = { files: [], layer: null };

async function show(place, page, signal) {
  const two = page.model.sections.includes("views");
  const { words } = page;
  const results = make("div");
  const work = async () => {
    if (kept.files.length < (two ? 2 : 1)) return;
    try {
      await (two ? showViews : showImage)(results, page, signal);
    } catch (error) {
      if (!signal.aborted) results.replaceChildren(make("p", { class: "card problem", role: "alert", text: error.message }));
    }
  };
  const zones = (two ? [0, 1] : [0]).map((number) => dropZone(number, two ? words.views[number] : words.dropImage, work));
  place.append(make("section", { class: "card drops" }, ...zones), results);
  await work();
}

/** Where a file is dropped or chosen. */
function dropZone(number, text, onFile) {
  const input = make("input", { type: "file", accept: "image/*" });
  const name = make("span", { class: "hint", text: kept.files[number]?.name ?? "" });
  const zone = make("label", { class: "drop", tabindex: 0 }, make("span", { text }), name, input);
  const take = (file) => {
    if (!file) return;
    kept.files[number] = file;
    name.textContent = file.name;
    onFile();
  };
  input.addEventListener("change", () => take(input.files[0]));
  zone.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), input.click()));
  for (const event of ["dragenter", "dragover"]) {
    zone.addEventListener(event, (over) => (over.preventDefault(), zone.classList.add("over")));
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  return zone;
}

async function showImage(results, page, signal, patch = null) {
  const { words } = page;
  const form = new FormData();
  form.append("image", kept.files[0]);
  form.append("model", page.model.name);
  if (patch !== null) form.append("patch", patch);
  const { about, arrays } = await ask("inspect/image", form, signal);
  if (signal.aborted) return;
  const picture = pictureOf(arrays.pixels);
  const bars = about.classes.map(([name, share]) => make("div", { class: "class" },
    make("span", { text: name }), make("meter", { min: 0, max: 1, value: share }), make("span", { class: "number", text: `${(100 * share).toFixed(1)}%` })));
  const card = make("section", { class: "card" }, make("h2", { text: words.classes }), ...bars);
  results.replaceChildren(card);
  if (!about.grid) {
    results.append(make("p", { class: "card", text: words.noPatches }), make("section", { class: "card" }, drawOver(picture, null)));
    return;
  }
  const [layers, heads] = arrays.heads.shape;
  const [rows, columns] = about.grid;
  const mapOf = (array) => makeMap(array.values, rows, columns);
  const layer = Math.min(kept.layer ?? layers - 1, layers - 1);
  const large = make("div", { class: "pictures" });
  const small = make("div", { class: "thumbs" });
  const draw = (at) => {
    kept.layer = at;
    const canvas = drawOver(picture, mapOf(part(arrays.rollout, at)), SIDE, about.grid, patch);
    canvas.addEventListener("click", (event) => {
      const column = Math.floor((event.offsetX / canvas.clientWidth) * columns);
      const row = Math.floor((event.offsetY / canvas.clientHeight) * rows);
      showImage(results, page, signal, row * columns + column).catch((error) => page.tell(error));
    });
    const caption = make("figcaption", { class: "hint", text: patch === null ? words.rolloutIs : words.patchIs });
    large.replaceChildren(make("figure", { class: "plain" }, make("h3", { text: words.image }), drawOver(picture, null)));
    large.append(make("figure", { class: "plain rollout" }, make("h3", { text: `${words.rollout} · ${words.layer} ${at}` }), canvas, caption));
    const own = part(arrays.heads, at);
    small.replaceChildren(...Array.from({ length: heads }, (_, head) => make("figure", { class: "plain" },
      drawOver(picture, mapOf(part(own, head)), SMALL), make("figcaption", { class: "hint", text: `${words.head} ${head}` }))));
  };
  const range = slider({ min: 0, max: layers - 1, step: 1, value: layer }, draw);
  const bar = make("div", { class: "bar controls" }, field(words.layer, range));
  if (patch !== null) {
    const back = () => showImage(results, page, signal).catch((error) => page.tell(error));
    bar.append(make("button", { class: "tool", text: words.wholeAnswer, on: { click: back } }));
  }
  results.append(make("section", { class: "card" }, make("h2", { text: words.looked }), bar, large, small));
  draw(layer);
}

async function showViews(results, page, signal) {
  const { words } = page;
  const form = new FormData();
  for (const file of kept.files.slice(0, 2)) form.append("image", file);
  form.append("model", page.model.name);
  const { about, arrays } = await ask("inspect/views", form, signal);
  if (signal.aborted) return;
  const [rows, columns] = about.grid;
  const pictures = [pictureOf(arrays.pixels0), pictureOf(arrays.pixels1)];
  const place = make("div", { class: "pictures" });
  const state = { patch: Math.floor(rows / 2) * columns + Math.floor(columns / 2), layer: about.layers - 1 };
  const draw = () => {
    const first = drawOver(pictures[0], null, SIDE, about.grid, state.patch);
    const map = makeMap(part(arrays[`cross${state.layer}`], state.patch).values, rows, columns);
    first.addEventListener("click", (event) => {
      const column = Math.floor((event.offsetX / first.clientWidth) * columns);
      state.patch = Math.floor((event.offsetY / first.clientHeight) * rows) * columns + column;
      draw();
    });
    place.replaceChildren(
      make("figure", { class: "plain first" }, make("h3", { text: words.views[0] }), first, make("figcaption", { class: "hint", text: words.clickPatch })),
      make("figure", { class: "plain second" }, make("h3", { text: words.views[1] }), drawOver(pictures[1], map)));
  };
  const range = slider({ min: 0, max: about.layers - 1, step: 1, value: state.layer }, (layer) => ((state.layer = layer), draw()));
  results.replaceChildren(make("section", { class: "card" }, make("h2", { text: words.otherView }), field(words.layer, range), place));
  draw();
}

/** Pixels of the server as a canvas. */
function pictureOf({ shape: [height, width, channels], values }) {
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

/** The picture, a map laid over it, and the patch that is asked about. */
function drawOver(picture, map, side = SIDE, grid = null, patch = null) {
  const canvas = make("canvas", { class: "picture-canvas" });
  const context = prepare(canvas, side, side);
  context.imageSmoothingEnabled = false;
  context.drawImage(picture, 0, 0, side, side);
  if (map) {
    context.imageSmoothingEnabled = true;
    context.drawImage(paint(map, SHADE), 0, 0, side, side);
  }
  if (grid && patch !== null) {
    const [rows, columns] = grid;
    context.strokeStyle = "#ff7a1a";
    context.lineWidth = 3;
    const x = ((patch % columns) * side) / columns;
    context.strokeRect(x, (Math.floor(patch / columns) * side) / rows, side / columns, side / rows);
  }
  return canvas;
}
