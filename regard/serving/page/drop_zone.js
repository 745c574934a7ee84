// An area on which a file can be dropped, or which opens a file dialog.

import { create } from "./dom.js";

/** Create the area; `onFile(file)` is called for each choice. `accept` is a list of suffixes or media types. */
export function createDropZone({ title = "", text, fileName = "", accept }, onFile) {
  const input = create("input", { type: "file", accept });
  const shownName = create("span", { class: "hint", text: fileName });
  const zone = create("label", { class: "drop-zone" },
    create("strong", { text: title }), create("span", { text }), shownName, input);
  const select = (file) => {
    if (!file) return;
    shownName.textContent = file.name;
    onFile(file);
  };
  input.addEventListener("change", () => select(input.files[0]));
  for (const name of ["dragenter", "dragover"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.add("drag-over");
    });
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("drag-over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("drag-over");
    select(event.dataTransfer.files[0]);
  });
  return zone;
}
