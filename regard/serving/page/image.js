// Section: an image, its classes and what the model looked at; or two views and where a patch of one looks in the other.

import { ask } from "./api.js";
import { make } from "./make.js";
import { pictureOf } from "./overlay.js";
import { showPatches } from "./patches.js";
import { showViews } from "./views.js";
import { showWindows } from "./windows.js";

export const section = { id: "image", needs: ["image", "views"], show };

const kept = { files: [] };

async function show(place, page, signal) {
  const two = page.model.sections.includes("views");
  const { words } = page;
  const results = make("div");
  const work = async () => {
    if (kept.files.length < (two ? 2 : 1)) return;
    results.replaceChildren();
    page.tell(null);
    try {
      await (two ? showViews(results, kept.files, page, signal) : showImage(results, page, signal));
    } catch (error) {
      page.tell(error);
    }
  };
  const zones = (two ? [0, 1] : [0]).map((number) => dropZone(number, two ? words.views[number] : "", words, work));
  place.append(make("section", { class: "card drops" }, ...zones), results);
  await work();
}

/** Where a file is dropped or chosen. */
function dropZone(number, title, words, onFile) {
  const input = make("input", { type: "file", accept: "image/*" });
  const name = make("span", { class: "hint", text: kept.files[number]?.name ?? "" });
  const zone = make("label", { class: "drop", tabindex: 0 }, make("strong", { text: title }), make("span", { text: words.dropImage }), name, input);
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

/** Classes, and what the answer looked at; or, once one is pressed, a patch, by its number. */
async function showImage(results, page, signal, patch = null) {
  const { words } = page;
  const form = new FormData();
  form.append("image", kept.files[0]);
  form.append("model", page.model.name);
  if (patch !== null) form.append("patch", patch);
  const found = await ask("inspect/image", form, signal);
  if (signal.aborted) return;
  const { about, arrays } = found;
  const bars = about.classes.map(([name, share]) => make("div", { class: "class" },
    make("span", { text: name }), make("span", { class: "number", text: `${(100 * share).toFixed(1)}%` }), make("meter", { min: 0, max: 1, value: share })));
  const looked = make("section", { class: "card" }, make("h2", { text: words.looked }));
  const classes = make("section", { class: "card" }, make("h2", { text: words.classes }), ...bars);
  results.replaceChildren(make("div", { class: "judged" }, classes, looked));
  const columns = about.grid[1];
  const place = patch === null ? null : [Math.floor(patch / columns), patch % columns];
  const choose = (next) => {
    const number = next && next[0] * columns + next[1];
    showImage(results, page, signal, number).catch((error) => page.tell(error));
  };
  (about.windows ? showWindows : showPatches)(looked, pictureOf(arrays.pixels), found, place, words, choose);
}
