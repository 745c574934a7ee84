// Card of the section "translate" for a document: choose or drop it, see the progress, and download the translation.

import { request } from "./api.js";
import { create, createButton, createField } from "./dom.js";
import { createDropZone } from "./drop_zone.js";

const MILLISECONDS_BETWEEN_POLLS = 500;
const SUFFIXES = ".txt,.md,.markdown,.html,.htm,.xhtml,.srt,.vtt,.po,.pot,.xliff,.xlf,.tmx,.docx,.odt,.json,.csv";

/**
 * Create the card. `glossary` are [term, translation] pairs, `scripts` the chosen scripts of Chinese; `signal` is
 * aborted when the section is closed.
 */
export function createFileCard({ strings, model }, glossary, scripts, signal) {
  const column = create("input", { type: "text", class: "column" });
  const output = create("div", { class: "file-result", role: "status", "aria-live": "polite" });
  const start = (file) => translateFile(file, column.value, model, glossary, scripts, strings, output, signal);
  const options = create("div", { class: "bar" });
  const zone = createDropZone({ text: strings.dropDocument, accept: SUFFIXES }, (file) => {
    options.replaceChildren();
    output.replaceChildren();
    if (!file.name.toLowerCase().endsWith(".csv")) start(file);
    else options.append(createField(strings.csvColumn, column), createButton(strings.translateButton, () => start(file)));
  });
  return create("section", { class: "card document-file" },
    create("h2", { text: strings.documentTitle }), zone, options, output,
    create("p", { class: "hint", text: strings.documentHint }));
}

async function translateFile(file, column, model, glossary, scripts, strings, output, signal) {
  const job = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const form = new FormData();
  const { source = model.source ?? "auto", target = model.target ?? "" } = scripts;
  const fields = { source, target, model: model.name, job };
  if (column) fields.column = column;
  if (glossary.length) fields.glossary = JSON.stringify(glossary);
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("file", file, file.name);
  const bar = create("progress", { max: 1, "aria-label": strings.documentProgress });
  const count = create("span", { class: "hint", text: strings.documentSent });
  output.replaceChildren(bar, count);
  const stop = new AbortController();
  showProgress(job, bar, count, strings, AbortSignal.any([signal, stop.signal]));
  try {
    showResult(await request("../translate_file", form, signal), file.name, strings, output);
  } catch (error) {
    if (!signal.aborted) output.replaceChildren(create("p", { class: "error", role: "alert", text: error.message }));
  } finally {
    stop.abort();
  }
}

/** Ask for the progress until the signal is aborted. The server does not know the document while it is parsed. */
async function showProgress(job, bar, count, strings, signal) {
  while (!signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, MILLISECONDS_BETWEEN_POLLS));
    if (signal.aborted) return;
    try {
      const { done, total } = await request(`files/${job}`, null, signal);
      if (!total) continue; // the document is still being parsed
      bar.max = total;
      bar.value = done;
      count.textContent = strings.documentSegments(done, total);
    } catch {
      // The translation itself reports errors.
    }
  }
}

function showResult({ translatedFileUrl, sentences, untranslated, untranslatedCount, placed }, name, strings, output) {
  const address = `download_file/${translatedFileUrl.split("/").pop()}`;
  const link = create("a", { class: "tool primary", href: address, download: "", text: strings.documentDownload(name) });
  output.replaceChildren(link, create("p", { class: "hint", text: strings.documentDone(sentences, placed) }));
  if (!untranslatedCount) return;
  const items = untranslated.map(({ where, reason, text }) => create("li", { text: `${where}: ${reason}${text ? ` (${text})` : ""}` }));
  output.append(create("details", {},
    create("summary", { text: strings.documentUntranslated(untranslatedCount) }), create("ul", {}, ...items)));
}
