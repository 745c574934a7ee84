// Section "training": loss, scores and samples of a run, and the attention at its checkpoints, while it is being trained.

import { initialState, integer, text } from "./address.js";
import { request } from "./api.js";
import { create, createButton, createField, createSelect } from "./dom.js";
import { HeadPanel } from "./head_panel.js";
import { defaultView, loadHeads, loadMap } from "./heads.js";
import { createLineChart } from "./line_chart.js";
import { createStepper } from "./stepper.js";

const MILLISECONDS_BETWEEN_REQUESTS = 2000;
const MAX_FRAMES = 60;
/** Losses of a two-view model with another second view, or without one. */
const OTHER_LOSSES = ["shuffled", "none"];
const NOT_SCORES = ["loss", "perplexity", "score", ...OTHER_LOSSES];
const parameters = { name: text(), head: integer(0, 0, 999) };
const state = initialState(parameters);

export const section = { id: "training", requires: ["training"], readsText: true, show, parameters, state };

async function show(container, page, signal) {
  const { strings, model } = page;
  const charts = create("div", { class: "pictures" });
  const samples = create("div");
  const status = create("p", { class: "readout", role: "status" });
  const maps = create("section", { class: "card", hidden: true }, create("h2", { text: strings.attentionInTraining }));
  container.append(
    create("section", { class: "card" }, create("h2", { text: strings.sections.training }), status, charts),
    create("section", { class: "card" }, create("h2", { text: strings.samples }), samples),
    maps);
  const log = { entries: [], next: 0, steps: [] };
  const film = model.sections.includes("attention") ? new Film(maps, page, signal) : null;
  const update = async () => {
    const path = `inspect/training?model=${encodeURIComponent(model.name)}&after=${log.next}`;
    const part = await request(path, undefined, signal);
    if (signal.aborted) return;
    if (part.next < log.next) log.entries = []; // the run was started again
    const isNew = part.entries.length > 0 || !charts.children.length;
    log.entries.push(...part.entries);
    log.next = part.next;
    const last = log.entries.at(-1);
    status.textContent = last ? strings.trainingStatus(last.step, Math.round(last.seconds ?? 0)) : strings.noEntries;
    if (isNew) {
      charts.replaceChildren(...createCharts(log.entries, strings));
      samples.replaceChildren(...createSamples(log.entries, strings));
    }
    if (part.has_model && !model.source && model.kind === "run" && !status.querySelector("button")) {
      status.append(" ", createButton(strings.openModel, () => location.reload()));
    }
    if (film) await film.addSteps(part.steps);
  };
  await update();
  const poll = () => setTimeout(async () => {
    if (signal.aborted) return;
    if (!document.hidden) await update().catch((error) => page.showError(error));
    poll();
  }, MILLISECONDS_BETWEEN_REQUESTS);
  poll();
}

/** Return charts of the losses and of the scores of the validations. */
function createCharts(entries, strings) {
  const line = (name, valueOf) => {
    const points = entries.map((entry) => [entry.step, valueOf(entry)]).filter(([, value]) => typeof value === "number");
    return { name: strings.metrics[name] ?? name, points };
  };
  const validationLine = (name) => line(name, (entry) => entry.validation?.[name]);
  const loss = [line("training", (entry) => entry.loss), ...["loss", ...OTHER_LOSSES].map(validationLine)];
  const names = [...new Set(entries.flatMap(({ validation }) => Object.keys(validation ?? {})))];
  const scores = names.filter((name) => !NOT_SCORES.includes(name)).map(validationLine);
  return [[strings.losses, loss], [strings.scoresOfValidation, scores]]
    .map(([title, lines]) => [title, lines.filter(({ points }) => points.length)])
    .filter(([, lines]) => lines.length)
    .map(([title, lines]) => createLineChart(title, lines, strings.trainingStep));
}

/** Return the samples of the last validation, and those of earlier ones in a list. */
function createSamples(entries, strings) {
  const validations = entries.filter((entry) => entry.samples?.length);
  if (!validations.length) {
    const text = entries.some((entry) => entry.validation) ? strings.noSamplesOfTask : strings.noSamples;
    return [create("p", { class: "hint", text })];
  }
  const sentences = validations.at(-1).samples.map(({ source, reference }, i) => {
    const rows = validations.slice(-8).map((entry) => create("tr", {},
      create("th", { text: String(entry.step), scope: "row" }),
      create("td", { text: entry.samples[i]?.translation ?? "" })));
    return create("div", { class: "sample" },
      create("p", { text: source }), create("p", { class: "hint", text: reference ?? "" }),
      create("table", { class: "classes" }, create("tbody", {}, ...rows)));
  });
  return sentences;
}

/** The attention map of one head at every checkpoint, as frames that can be played. */
class Film {
  constructor(container, page, signal) {
    Object.assign(this, { container, page, signal, strings: page.strings, frames: new Map(), steps: [] });
    this.controls = create("div", { class: "bar controls" });
    this.player = create("div");
    this.panel = new HeadPanel(page.strings);
    container.append(create("p", { class: "hint", text: this.strings.filmHint }), this.controls, this.player, this.panel.element);
  }

  /** Load the maps of new checkpoints; those of deleted ones remain. */
  async addSteps(steps) {
    if (!this.heads) await this.start();
    const added = steps.filter((step) => !this.frames.has(step));
    if (this.signal.aborted || !added.length) return;
    for (const step of added) {
      try {
        this.frames.set(step, await this.loadFrame(step));
      } catch (error) {
        if (error.name === "AbortError") return;
        this.frames.set(step, null); // deleted meanwhile
      }
    }
    for (const step of [...this.frames.keys()].slice(0, -MAX_FRAMES)) this.frames.delete(step);
    this.container.hidden = false;
    this.showPlayer();
  }

  async start() {
    const { page, signal, strings } = this;
    this.heads = await loadHeads(page.model.name, page.sentence, signal);
    const { views } = this.heads;
    if (!views.some(({ name }) => name === state.name)) {
      Object.assign(state, { name: defaultView(views).name, head: 0 });
    }
    const change = async (values) => {
      Object.assign(state, values);
      page.saveView({ replace: true });
      this.createControls(change);
      const known = [...this.frames.keys()];
      this.frames.clear();
      await this.addSteps(known).catch((error) => page.showError(error));
    };
    this.createControls(change, strings);
  }

  createControls(change) {
    const { strings, heads } = this;
    const view = heads.views.find(({ name }) => name === state.name);
    state.head = Math.min(state.head, view.heads);
    const names = heads.views.map(({ name }) => [name, name]);
    const numbers = Array.from({ length: view.heads + 1 }, (_, i) => [i, i === view.heads ? strings.mean : i]);
    this.controls.replaceChildren(
      createField(strings.attention, createSelect(names, state.name, (name) => change({ name }))),
      createField(strings.headField, createSelect(numbers, state.head, (head) => change({ head: Number(head) }))));
  }

  loadFrame(step) {
    const { model, text: sentence, target, views } = this.heads;
    const view = views.find(({ name }) => name === state.name);
    const load = (operation, fields, signal) =>
      request("inspect/training_map", { model, text: sentence, target, step, ...fields }, signal);
    return loadMap({ load }, view, state.head, { quantity: "weights", overlaid: [], words: true }, this.signal);
  }

  showPlayer() {
    const { strings } = this;
    const steps = [...this.frames.keys()].filter((step) => this.frames.get(step)).sort((a, b) => a - b);
    if (!steps.length) return;
    const { name, head } = state;
    const { heads: count } = this.heads.views.find((view) => view.name === name);
    const headName = head === count ? strings.mean : `${strings.head} ${head}`;
    const showFrame = (number) => {
      this.shown = steps[number];
      this.panel.show(`${strings.trainingStep} ${steps[number]} · ${name} · ${headName}`, strings.axes, this.frames.get(steps[number]), 1);
    };
    const isLast = this.shown === undefined || this.shown === this.last;
    this.last = steps.at(-1);
    const player = createStepper(steps.length - 1, (position) => `${strings.checkpoint} ${position}`, strings, this.signal, showFrame);
    this.player.replaceChildren(player.element);
    player.go(isLast ? steps.length - 1 : Math.max(0, steps.indexOf(this.shown)));
  }
}
