// The menu of downloads: the sentence as look.html, and every panel of the view as SVG, PNG or CSV.

import { requestText } from "./api.js";
import { create, createButton } from "./dom.js";
import { panelToCsv } from "./panel_data.js";

const MAX_NAME = 60;

/** Create the menu; its entries are those of the panels that are shown when it is opened. */
export function createDownloads(panels, page) {
  const { strings } = page;
  const list = create("div", { class: "menu-list" });
  const menu = create("details", { class: "menu downloads" }, create("summary", { class: "tool", text: strings.download }), list);
  menu.addEventListener("toggle", () => menu.open && list.replaceChildren(...createEntries(panels, page)));
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.firstChild.focus();
  });
  return menu;
}

function createEntries(panels, page) {
  const { strings, model } = page;
  const entries = [];
  if (model?.sections.includes("attention") && page.sentence) {
    const button = createButton("look.html", () => run(page, () => saveLook(page)), { title: strings.lookTitle });
    entries.push(create("div", { class: "menu-entry" }, create("span", { text: strings.downloadSentence }), button));
  }
  for (const panel of panels.querySelectorAll(".card")) {
    const title = panel.querySelector("h2, h3")?.textContent || strings.sections[document.documentElement.dataset.ready] || "";
    const formats = { SVG: saveSvg, PNG: savePng, CSV: saveCsv };
    const buttons = Object.entries(formats).map(([format, save]) =>
      createButton(format, () => run(page, () => save(panel, title)), { "aria-label": `${title}: ${format}` }));
    entries.push(create("div", { class: "menu-entry" }, create("span", { text: title }), ...buttons));
  }
  return entries;
}

async function run(page, save) {
  try {
    await save();
  } catch (error) {
    page.showError(error);
  }
}

async function saveLook({ model, sentence }) {
  const text = await requestText("inspect/look", { model: model.name, text: sentence });
  saveFile(new Blob([text], { type: "text/html" }), "look.html");
}

async function saveSvg(panel, title) {
  const { panelToSvg } = await import("./panel_svg.js"); // most visits do without it
  saveFile(new Blob([panelToSvg(panel)], { type: "image/svg+xml" }), `${title}.svg`);
}

async function savePng(panel, title) {
  const { panelToSvg, svgToPng } = await import("./panel_svg.js");
  saveFile(await svgToPng(panelToSvg(panel)), `${title}.png`);
}

function saveCsv(panel, title) {
  // The mark at the beginning tells spreadsheets that the file is UTF-8.
  saveFile(new Blob(["\ufeff", panelToCsv(panel)], { type: "text/csv" }), `${title}.csv`);
}

function saveFile(blob, name) {
  const address = URL.createObjectURL(blob);
  const safeName = name.replace(/[^\p{L}\p{N}.,()+-]+/gu, "-").replace(/^-+/, "").slice(-MAX_NAME);
  create("a", { href: address, download: safeName }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
