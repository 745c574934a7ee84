// The iterations of a non-autoregressive model: a row for each iteration, a column for each target position; or its graph.

import { colourOf, makeScale, textColourOn } from "./colours.js";
import { drawScale, formatNumber } from "./description.js";
import { create, createField, createScroller, createSelect, numberOptions } from "./dom.js";
import { setData } from "./panel_data.js";
import { createStepper } from "./stepper.js";
import { isDark } from "./theme.js";

const percent = (probability) => `${(100 * probability).toFixed(0)}%`;

/**
 * Fill `card` and `controls`; `change(search)` repeats the search with other settings. `state` holds the index of the
 * shown candidate and its shown iteration, where null means the last.
 */
export async function showIterations(card, controls, { text, candidates, graph, length, settings }, page, change, state, signal) {
  const { strings } = page;
  controls.append(...createSettings(length, settings, strings, change));
  if (graph) {
    await showGraph(card, graph, page, state, signal);
    return;
  }
  const container = create("div");
  const draw = () => container.replaceChildren(...createCandidate(candidates[state.candidate], page, state, signal));
  const select = (candidate) => {
    Object.assign(state, { candidate, step: null });
    page.saveView();
    draw();
  };
  state.candidate = page.limit(strings.hypothesis, state.candidate, candidates.length);
  card.append(create("p", { class: "translation", text }));
  if (candidates.length > 1) card.append(createCandidateList(candidates, state.candidate, strings, select));
  card.append(container);
  draw();
}

/** Show the graph of a model with `length: dag`; the candidate of `state` is the index of the shown path. */
async function showGraph(card, graph, page, state, signal) {
  const { createGraph } = await import("./token_graph.js");
  if (signal.aborted) return;
  state.candidate = page.limit(page.strings.hypothesis, state.candidate, graph.paths.length);
  const translation = create("p", { class: "translation", text: graph.paths[state.candidate].text });
  const { elements, svg, rows } = createGraph(graph, state.candidate, page.language, (candidate) => {
    state.candidate = candidate;
    translation.textContent = graph.paths[candidate].text;
    page.saveView();
  });
  setData(svg, () => rows);
  card.append(translation, ...elements);
}

function createSettings(length, settings, strings, change) {
  const createSetting = (name, numbers) => {
    const options = numberOptions(numbers, settings[name]);
    return createField(strings[name], createSelect(options, settings[name], (value) => change({ [name]: Number(value) })));
  };
  if (length === "classifier") {
    return [createSetting("iterations", [1, 2, 3, 4, 6, 8, 10]), createSetting("lengths", [1, 2, 3, 5, 8])];
  }
  return ["ctc", "dag"].includes(length) ? [createSetting("beam", [1, 2, 4, 8])] : [];
}

/** Create a list of the results of each length, or of each CTC path. */
function createCandidateList(candidates, selected, strings, onSelect) {
  const buttons = candidates.map((candidate, i) => {
    const button = create("button", { class: "alternative", "aria-pressed": String(i === selected) },
      create("span", { class: "score", text: formatNumber(candidate.score) }),
      create("span", { class: "score", text: strings.tokenCount(candidate.iterations[0].tokens.length) }),
      create("span", { text: candidate.text || "∅" }));
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      onSelect(i);
    });
    return button;
  });
  return create("ol", { class: "alternatives" }, ...buttons.map((button) => create("li", {}, button)));
}

function createCandidate({ iterations }, page, state, signal) {
  const { strings } = page;
  const scale = makeScale(isDark(), false);
  const readout = create("p", { class: "readout", "aria-live": "polite", text: strings.pointAtPrediction });
  const describe = (text) => {
    readout.textContent = text;
  };
  const rows = iterations.map(({ tokens }, number) => {
    const cells = tokens.map((_, position) => createCell(iterations, number, position, scale, describe, strings));
    return create("tr", {}, create("th", { text: strings.iteration(number + 1) }), ...cells);
  });
  const table = create("table", { class: "iterations" }, create("tbody", {}, ...rows));
  const parts = [createScroller("scroll", strings.searchTitle, table), createLegend(scale, strings)];
  if (iterations.length === 1) {
    return [readout, ...parts, create("p", { class: "hint", text: strings.singleIteration })];
  }
  let follow = false; // do not scroll when the table is shown for the first time
  const stepper = createStepper(iterations.length - 1, strings.iteration, strings, signal, (step) => {
    rows.forEach((row, i) => {
      row.classList.toggle("later", i > step);
      row.classList.toggle("current", i === step);
    });
    if (!follow) return;
    rows[step].scrollIntoView({ block: "nearest", inline: "nearest" });
    state.step = step === iterations.length - 1 ? null : step;
    page.saveView({ replace: true });
  });
  const last = iterations.length - 1;
  stepper.go(state.step === null ? last : page.limit(strings.iterations, state.step, last + 1));
  follow = true;
  return [stepper.element, readout, ...parts, create("p", { class: "hint", text: strings.iterationsHint })];
}

/** Create the cell of a position: the masked token of the previous iteration, if any, above the current token. */
function createCell(iterations, number, position, scale, describe, strings) {
  const { tokens, probabilities, predicted } = iterations[number];
  const token = tokens[position];
  const probability = probabilities[position];
  const isRepeated = number > 0 && predicted[position];
  const button = create("button", { class: isRepeated ? "token repeated" : "token", text: token });
  button.style.backgroundColor = colourOf(scale, probability);
  button.style.color = textColourOn(scale, probability);
  const prediction = isRepeated ? "again" : number ? "kept" : "first";
  let text = `${strings.iteration(number + 1)} · ${token} ${percent(probability)} · ${strings.predictions[prediction]}`;
  const cell = create("td");
  if (isRepeated) {
    const previous = iterations[number - 1];
    const previousToken = previous.tokens[position];
    cell.append(create("s", { class: "masked-token", text: previousToken }));
    button.classList.toggle("changed-token", previousToken !== token);
    text += `: ${previousToken} ${percent(previous.probabilities[position])} → ${token} ${percent(probability)}`;
  }
  for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, () => describe(text));
  cell.append(button);
  return cell;
}

function createLegend(scale, strings) {
  const canvas = create("canvas");
  drawScale(canvas, scale);
  return create("p", { class: "legend" },
    create("span", { text: `${strings.probability} 0%` }), canvas, create("span", { text: "100%" }));
}
