// Section "arithmetic": the attention of one query of one head, step by step, and an example with two tokens.

import { initialState, integer, text } from "./address.js";
import { formatNumber } from "./description.js";
import { create, createButton, createField, createScroller, createSelect } from "./dom.js";
import { defaultView, loadHeads } from "./heads.js";
import { sliceArray } from "./packet.js";
import { resetToyExample, showToyExample } from "./toy_example.js";
import { drawVector } from "./vector.js";

const STEPS = ["project", "product", "scale", "mask", "softmax", "values", "concatenate", "add", "transform"];
const MAX_EXPONENT = 50; // larger scores are shown relative to the largest
/** Steps before and after the attention, which are not shown for models with windows. */
const BLOCK_STEPS = ["project", "add", "transform"];
const parameters = { name: text(), head: integer(0, 0, 999), query: integer(1, 0, 9999), step: integer(0, 0, STEPS.length - 1) };
const state = initialState(parameters);

export const section = { id: "arithmetic", requires: ["arithmetic"], readsText: true, show, parameters, state };

/** Labels of the queries of each group of attention modules; those of image models depend on the module. */
const QUERY_AXES = { encoder: "source", decoder: "decoder_output", cross: "decoder_output" };

async function show(container, page, signal) {
  const { strings } = page;
  const card = create("section", { class: "card" });
  const toyCard = create("section", { class: "card toy" });
  container.append(card, toyCard);
  if (page.isStateGiven) resetToyExample();
  showToyExample(toyCard, strings);
  const heads = await loadHeads(page.model.name, page.sentence, signal);
  if (!signal.aborted) await showArithmetic(card, page, heads, signal);
}

/** Fill a card with the arithmetic of a sentence or an image, whose heads are those of `loadHeads`. */
export async function showArithmetic(card, page, source, signal) {
  const { strings } = page;
  const views = new Map(source.views.map((view) => [view.name, view]));
  if (!views.has(state.name)) {
    if (state.name) page.addNotice(strings.unknownName(state.name));
    state.name = defaultView(source.views).name;
  }

  const draw = async () => {
    const view = views.get(state.name);
    const queries = source.labels[QUERY_AXES[view.group]] ?? source.labels[view.name];
    state.head = page.limit(strings.headField, state.head, view.heads);
    state.query = page.limit(strings.query, state.query, queries.length);
    const { name, head, query } = state;
    const packet = await source.load("arithmetic", { name, head, query }, signal);
    if (signal.aborted) return;
    const change = (values) => {
      Object.assign(state, values);
      page.saveView();
      draw().catch((error) => page.showError(error));
    };
    const names = [...views.keys()].map((option) => [option, option]);
    const heads = Array.from({ length: view.heads }, (_, i) => [i, i]);
    const queryOptions = queries.map((label, i) => [i, `${i} ${label}`]);
    const bar = create("div", { class: "bar controls" },
      createField(strings.attention, createSelect(names, name, (value) => change({ name: value }))),
      createField(strings.headField, createSelect(heads, head, (value) => change({ head: Number(value) }))),
      createField(strings.query, createSelect(queryOptions, query, (value) => change({ query: Number(value) }))));
    const isPredicting = QUERY_AXES[view.group] === "decoder_output";
    card.replaceChildren(create("h2", { text: strings.arithmeticTitle }), bar, ...createSteps(packet, page, isPredicting));
  };
  await draw();
}

/** Create buttons for the steps, the formula of the current step, and the results up to it. */
function createSteps(packet, page, isPredicting) {
  const { strings } = page;
  const formula = create("p", { class: "formula", "aria-live": "polite" });
  const buttons = create("div", { class: "steps", role: "group", "aria-label": strings.steps });
  const prose = create("p", { class: "prose" });
  const table = createTable(packet, strings, isPredicting);
  const outputs = createOutputs(packet, strings);
  const scroll = createScroller("scroll", strings.arithmeticTitle, table);
  const available = STEPS.map((name, step) => step).filter((step) => packet.arrays.x || !BLOCK_STEPS.includes(STEPS[step]));
  const go = (step, follow = true) => {
    state.step = Math.min(available.at(-1), Math.max(available[0], step));
    [...buttons.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === state.step)));
    for (const part of [...table.querySelectorAll("[data-step]"), ...outputs.children]) {
      part.hidden = Number(part.dataset.step) > state.step;
    }
    formula.replaceChildren(...formulaOfStep(STEPS[state.step], packet, strings).split("\n").map((text) => create("span", { text })));
    prose.textContent = strings.stepProse[STEPS[state.step]](packet.content);
    page.saveView({ replace: true });
    if (follow) scrollToStep(scroll, outputs);
  };
  const names = { ...strings.stepNames, project: `${inputName(packet.content)}·W`, ...(packet.content.pre_norm && { add: strings.blocks.add }) };
  STEPS.forEach((name, i) => buttons.append(createButton(`${i + 1} ${names[name]}`, () => go(i))));
  [...buttons.children].forEach((button, step) => {
    button.hidden = !available.includes(step);
  });
  buttons.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    go(state.step + move);
    buttons.children[state.step].focus();
  });
  go(state.step, false);
  return [buttons, prose, formula, scroll, outputs];
}

/** Scroll to the column or the output that the current step has added. */
function scrollToStep(scroll, outputs) {
  const output = [...outputs.children].find((part) => Number(part.dataset.step) === state.step);
  const column = scroll.querySelector(`th[data-step="${state.step}"]`);
  if (column) scroll.scrollLeft = Math.max(0, column.offsetLeft + column.offsetWidth - scroll.clientWidth);
  if (output && output.getBoundingClientRect().bottom > innerHeight) output.scrollIntoView({ block: "nearest" });
}

/** Create a table with a row for each key: its vector, product with the query, score, weight and value. */
function createTable({ content, arrays }, strings, isPredicting) {
  const { q, k, v, products, scores, weights } = arrays;
  const maximum = largest(q.values, k.values);
  const maximumValue = largest(v.values);
  const maximumScore = Math.max(...scores.values);
  const columns = [
    ["", 0], [strings.keyColumn, 0], ["q·k", 1, "number"], [`× ${formatNumber(content.scale)}`, 2, "number"],
    [strings.mask, 3, "number"], ["softmax", 4], ["v", 5],
  ];
  const header = columns.map(([text, step, className]) => create("th", { text, "data-step": step, class: className }));
  const label = isPredicting ? strings.predicts(content.rows[state.query]) : "q";
  const query = create("tr", { class: "query" }, create("th", { text: label }), create("td", {}, drawVector(q.values, maximum)));
  const keys = content.columns.map((label, i) => {
    const isMasked = scores.values[i] === -Infinity;
    const weight = weights.values[i];
    return create("tr", { class: isMasked ? "masked" : "" },
      create("th", { text: label }),
      create("td", {}, drawVector(sliceArray(k, i).values, maximum)),
      create("td", { class: "number", "data-step": 1, text: formatNumber(products.values[i]) }),
      create("td", { class: "number", "data-step": 2, text: formatNumber(products.values[i] * content.scale) }),
      create("td", { class: "number", "data-step": 3, text: content.softmax ? formatNumber(scores.values[i]) : isMasked ? "✕" : "✓" }),
      create("td", { class: "number softmax", "data-step": 4 },
        content.softmax ? create("small", { text: describeExponential(scores.values[i], maximumScore) }) : "",
        create("meter", { min: 0, max: 1, value: Math.min(1, Math.max(0, weight)) }),
        create("span", { text: formatNumber(weight) })),
      create("td", { "data-step": 5 }, drawVector(sliceArray(v, i).values, maximumValue)));
  });
  return create("table", { class: "arithmetic" },
    create("thead", {}, create("tr", {}, ...header)),
    create("tbody", {}, query, ...keys));
}

/** Create the output of the head, the outputs of all heads, and the result of the output projection. */
function createOutputs({ content, arrays }, strings) {
  const { heads, output, residual, update, added, hidden, transformed } = arrays;
  const strip = (title, { values }) => [create("h3", { text: title }), drawVector(values, largest(values), 4)];
  const maximum = largest(heads.values);
  const rows = Array.from({ length: heads.shape[0] }, (_, i) => {
    const label = create("span", { class: "layer", text: `${strings.head} ${i}` });
    const className = i === state.head ? "strip selected" : "strip";
    return create("div", { class: className }, label, drawVector(sliceArray(heads, i).values, maximum));
  });
  const block = !added ? [] : [
    create("div", { "data-step": 7 },
      ...strip(strings.residual(content), residual), ...strip(strings.update, update), ...strip(strings.added, added)),
    create("div", { "data-step": 8 }, ...strip(strings.hidden, hidden), ...strip(strings.transformed, transformed)),
  ];
  return createScroller("outputs", strings.headOutputs,
    create("div", { "data-step": 5 },
      create("h3", { text: strings.headOutput }),
      drawVector(sliceArray(heads, state.head).values, maximum)),
    create("div", { "data-step": 6 },
      create("h3", { text: strings.headOutputs }), ...rows,
      ...strip(strings.projected, output)),
    ...block);
}

/** Return the formula of a step for the key with the largest weight. */
function formulaOfStep(step, { content, arrays }, strings) {
  const { q, k, v, products, scores, weights, heads, output } = arrays;
  const best = weights.values.indexOf(Math.max(...weights.values));
  const product = products.values[best];
  switch (step) {
    case "project":
      return ["q", "k", "v"].map((name, part) => formulaOfProjection(name, part, best, { content, arrays })).join("\n");
    case "product": {
      const key = sliceArray(k, best).values;
      const terms = Array.from(q.values.subarray(0, 3), (x, i) => `${formatNumber(x)}×${formatNumber(key[i])}`);
      return `q·k(${content.columns[best]}) = ${terms.join(" + ")} + … = ${formatNumber(product)}`;
    }
    case "scale": {
      const width = q.values.length;
      const scaled = formatNumber(product * content.scale);
      const formula = `${formatNumber(product)} × ${formatNumber(content.scale)} = ${scaled}   (1/√${width} = ${formatNumber(width ** -0.5)})`;
      if (!content.softmax) return formula;
      const pair = [weights.values[best], unscaledWeight(best, content, arrays)].map((weight) => formatNumber(weight));
      return `${formula}\n${strings.unscaled(content.columns[best], ...pair)}`;
    }
    case "mask": {
      const masked = scores.values.filter((score) => score === -Infinity).length;
      return masked ? strings.maskedKeys(masked) : strings.noMaskedKeys;
    }
    case "softmax": {
      if (!content.softmax) return strings.noSoftmax;
      const score = scores.values[best];
      const maximum = Math.max(...scores.values);
      const shift = maximum > MAX_EXPONENT ? maximum : 0;
      const sum = scores.values.reduce((total, other) => total + Math.exp(other - shift), 0);
      const quotient = `${formatNumber(Math.exp(score - shift))} / ${formatNumber(sum)} = ${formatNumber(weights.values[best])}`;
      return `${content.columns[best]}: ${describeExponential(score, maximum)} = ${quotient}`;
    }
    case "values": {
      const first = weights.values.subarray(0, 3);
      const terms = Array.from(first, (weight, i) => `${formatNumber(weight)}×${formatNumber(sliceArray(v, i).values[0])}`);
      return `o₀ = ${terms.join(" + ")} + … = ${formatNumber(sliceArray(heads, state.head).values[0])}`;
    }
    case "concatenate":
      return strings.concatenation(...heads.shape, output.values.length);
    case "add":
      return formulaOfSum(content, arrays, strings);
    default:
      return strings.feedForward(arrays.update.values.length, arrays.hidden.values, content.activation);
  }
}

/** Return the weight that a key would have without the scale. */
function unscaledWeight(key, { scale }, { products, scores }) {
  const unscaled = Array.from(scores.values, (score, i) => score + products.values[i] * (1 - scale));
  return 1 / unscaled.reduce((sum, other) => sum + Math.exp(other - unscaled[key]), 0);
}

/** Return how feature 0 of q, k or v is computed; q of the query, k and v of the key with the largest weight. */
function formulaOfProjection(name, part, best, { content, arrays }) {
  const { x, y, projections, biases } = arrays;
  const input = part === 0 ? x.values : sliceArray(y, best).values;
  const weights = sliceArray(projections, part).values;
  const terms = [0, 1, 2].slice(0, input.length).map((i) => `${formatNumber(input[i])}×${formatNumber(weights[i])}`);
  const result = part === 0 ? arrays.q : sliceArray(arrays[name], best);
  const token = part === 0 ? content.rows[state.query] : content.columns[best];
  const bias = biases.values[part] ? ` + ${formatNumber(biases.values[part])}` : "";
  const rotation = content.rotary && part < 2 ? " ↻" : "";
  const symbol = part > 0 && content.cross ? "h" : inputName(content);
  return `${name}₀(${token}) = ${symbol}·W_${name.toUpperCase()} = ${terms.join(" + ")} + …${bias}${rotation} = ${formatNumber(result.values[0])}`;
}

/** Return the symbol of the input of the projections: x̂ is x after LayerNorm. */
function inputName({ pre_norm: isPreNorm }) {
  return isPreNorm ? "x̂" : "x";
}

/** Return the sum of the residual connection and what LayerNorm makes of it, for feature 0. */
function formulaOfSum({ pre_norm: isPreNorm }, { residual, update, added }, strings) {
  const sums = residual.values.map((value, i) => value + update.values[i]);
  const sum = `x₀ + y₀ = ${formatNumber(residual.values[0])} + ${formatNumber(update.values[0])} = ${formatNumber(sums[0])}`;
  if (isPreNorm) return sum;
  const mean = sums.reduce((a, b) => a + b, 0) / sums.length;
  const deviation = Math.sqrt(sums.reduce((total, value) => total + (value - mean) ** 2, 0) / sums.length);
  return `${sum}\n${strings.normalisation(formatNumber(mean), formatNumber(deviation), formatNumber(added.values[0]))}`;
}

/** Return "e^4.78 / Σ e^s", with the largest score subtracted if the exponentials would be too large. */
function describeExponential(score, maximum) {
  if (score === -Infinity) return "e^−∞ = 0";
  const difference = maximum > MAX_EXPONENT ? score - maximum : score;
  return `e^${formatNumber(difference, 2)} / Σ`;
}

function largest(...lists) {
  return Math.max(1e-9, ...lists.map((values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0)));
}
