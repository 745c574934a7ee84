// Section "beam": the tree of a beam search, or the iterations of a non-autoregressive model.

import { choice, initialState, inputWatcher, integer, number } from "./address.js";
import { request } from "./api.js";
import { drawTree, winningPath } from "./beam_tree.js";
import { formatNumber } from "./description.js";
import { create, createField, createSelect, numberOptions } from "./dom.js";
import { showIterations } from "./nat_iterations.js";
import { createStepper } from "./stepper.js";

const SETTINGS = ["beam", "length_penalty", "alpha", "iterations", "lengths"];
/** Search settings, where null means the setting of the server, and the shown step, where null means the last. */
const parameters = {
  beam: integer(null, 1, 16),
  length_penalty: choice(["average", "wu", "none"]),
  alpha: number(null, 0, 10),
  iterations: integer(null, 1, 20),
  lengths: integer(null, 1, 16),
  candidate: integer(0, 0, 99),
  step: integer(null, 0, 9999),
};
const state = initialState(parameters);
const watchInput = inputWatcher();

export const section = { id: "beam", requires: ["beam"], readsText: true, show, parameters, state };

async function show(container, page, signal) {
  const card = create("section", { class: "card" });
  container.append(card);
  const { isOtherModel, isOtherInput } = watchInput(page);
  if (isOtherModel) Object.assign(state, initialState(parameters));
  else if (isOtherInput) Object.assign(state, { candidate: 0, step: null });
  const draw = async () => {
    // alpha has no effect without a length penalty, and the server rejects any value but the default.
    const settings = Object.fromEntries(SETTINGS.filter((name) => state[name] !== null).map((name) => [name, state[name]]));
    if (settings.length_penalty === "none") settings.alpha = 1;
    const body = { model: page.model.name, text: page.sentence, search: settings };
    const result = await request("inspect/beam", body, signal);
    if (signal.aborted) return;
    const change = (values) => {
      Object.assign(state, values, { candidate: 0, step: null });
      page.saveView();
      draw().catch((error) => page.showError(error));
    };
    const controls = create("div", { class: "bar controls" });
    card.replaceChildren(create("h2", { text: page.strings.searchTitle }), controls);
    if (!result.length) showTree(card, controls, result, page, change, signal);
    else await showIterations(card, controls, result, page, change, state, signal);
  };
  await draw();
}

function showTree(card, controls, { text, tree, settings }, page, change, signal) {
  const { strings } = page;
  controls.append(...createSettings(settings, strings, change));
  const readout = create("p", { class: "readout", "aria-live": "polite", text: strings.pointAtHypothesis });
  const scroll = create("div", { class: "scroll tree-scroll", tabindex: 0, role: "region", "aria-label": strings.searchTitle });
  const drawing = drawTree(scroll, tree, strings.searchTitle, (node, outcome) => {
    readout.textContent = describeNode(node, outcome, settings, strings);
  });
  const lastStep = Math.max(...tree.map((node) => node.step));
  const [best] = winningPath(tree);
  const finalStep = best === undefined ? lastStep : tree[best].step;
  let follow = false; // do not scroll when the tree is shown for the first time
  const showStep = (step) => {
    readout.textContent = strings.pointAtHypothesis;
    drawing.show(step, follow);
    if (follow) saveStep(page, step, lastStep);
  };
  const stepper = createStepper(lastStep, strings.step, strings, signal, showStep, {
    at: finalStep,
    then: () => {
      if (finalStep < lastStep) readout.textContent = strings.translationComplete(finalStep + 1);
    },
  });
  scroll.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    stepper.move(move);
  });
  card.append(
    create("p", { class: "translation", text }),
    stepper.element, readout, scroll, createLegend(strings));
  stepper.go(state.step === null ? lastStep : page.limit(strings.stepField, state.step, lastStep + 1));
  follow = true;
}

/** Create a sample box for each kind of hypothesis. */
function createLegend({ treeKinds, treeHint }) {
  const keys = Object.entries(treeKinds).map(([kind, text]) =>
    create("span", { class: "field" }, create("span", { class: `tree-key ${kind}`, text: "−1.2", "aria-hidden": "true" }), text));
  return create("div", { class: "bar hint tree-legend" }, ...keys, create("span", { text: treeHint }));
}

/** Keep the shown step in the address; the last step is the initial one. */
function saveStep(page, step, lastStep) {
  state.step = step === lastStep ? null : step;
  page.saveView({ replace: true });
}

function createSettings({ beam, length_penalty: penalty, alpha }, strings, change) {
  const widths = numberOptions([1, 2, 3, 4, 5, 8], beam);
  const penalties = Object.entries(strings.penalties);
  const fields = [
    createField(strings.beam, createSelect(widths, beam, (value) => change({ beam: Number(value) }))),
    createField(strings.lengthPenalty, createSelect(penalties, penalty, (value) => change({ length_penalty: value }))),
  ];
  if (penalty !== "none") {
    const alphas = numberOptions([0, 0.2, 0.6, 1, 1.5, 2], alpha);
    fields.push(createField("α", createSelect(alphas, alpha, (value) => change({ alpha: Number(value) }))));
  }
  return fields;
}

/** Return the log-probability, the score and the outcome of a hypothesis. */
function describeNode(node, outcome, { length_penalty: penalty, alpha }, strings) {
  const length = node.step + 1;
  const divisor = { average: `${length}^${alpha}`, wu: `((5+${length})/6)^${alpha}`, none: "1" }[penalty];
  const score = `Σ ${formatNumber(node.cumulative_log_prob)} ÷ ${divisor} = ${formatNumber(node.score)}`;
  return `${node.token}: log p ${formatNumber(node.log_prob)} · ${score} · ${strings.outcomes[outcome] ?? outcome}`;
}
