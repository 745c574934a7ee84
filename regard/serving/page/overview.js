// Section "overview": the whole model in one picture, from the embedding to the predicted token. Every block opens its
// section.

import { initialState, inputWatcher, integer } from "./address.js";
import { request } from "./api.js";
import { formatNumber } from "./description.js";
import { create, createShareBar } from "./dom.js";
import { createDropZones, imageForm, selectedFiles } from "./image_files.js";
import { FlowBlock } from "./overview_block.js";
import { createImage } from "./overlay.js";
import { createStepper } from "./stepper.js";
import { getTranslation } from "./translations.js";

const parameters = { step: integer(null, 0, 9999) };
const state = initialState(parameters);
const CHIPS = 24;

export const section = { id: "overview", requires: ["overview"], readsText: true, show, parameters, state };

const watchInput = inputWatcher();

async function show(container, page, signal) {
  if (watchInput(page).isOtherInput) state.step = null;
  if (page.model.sections.includes("translate")) await showTranslation(container, page, signal);
  else await showImages(container, page, signal);
}

async function showTranslation(container, page, signal) {
  const { model, sentence, strings } = page;
  const { target } = await getTranslation(model.name, sentence, signal);
  const packet = await request("inspect/overview", { model: model.name, text: sentence, target }, signal);
  if (signal.aborted) return;
  const { content } = packet;
  const flow = new Flow(page, packet);
  const columns = content.stacks.map((stack) => flow.createStack(stack));
  const outputs = createOutputs(content, strings, (step) => openSearch(page, step));
  columns.at(-1).append(createArrow(), outputs.element);
  // Autoregressive models are played token by token, others layer by layer.
  const tokens = content.outputs.length;
  const total = content.parallel ? flow.depth : tokens;
  const label = content.parallel ? strings.layerStep : strings.tokenStep;
  const draw = (step) => {
    if (content.parallel) {
      flow.showDepth(step);
      outputs.show(step === total - 1 ? tokens - 1 : -1, true);
    } else {
      flow.showToken(step);
      outputs.show(step, false);
    }
  };
  fillCard(container, page, signal, { total, label, draw, columns, hint: content.parallel ? strings.overviewParallel : strings.overviewHint });
}

async function showImages(container, page, signal) {
  const { strings, model } = page;
  const isPair = model.sections.includes("views");
  const results = create("div");
  const count = isPair ? 2 : 1;
  const draw = async () => {
    if (selectedFiles.length < count) return;
    page.showError(null);
    try {
      const packet = await request("inspect/image_overview", imageForm({ model: model.name }, count), signal);
      if (signal.aborted) return;
      results.replaceChildren();
      showPatches(results, page, packet, signal);
    } catch (error) {
      page.showError(error);
    }
  };
  container.append(createDropZones(page, draw), results);
  await draw();
}

function showPatches(container, page, packet, signal) {
  const { strings } = page;
  const { content, arrays } = packet;
  const flow = new Flow(page, packet);
  const images = [arrays.pixels ?? arrays.pixels0, arrays.pixels1].filter(Boolean).map(createImage);
  const columns = content.stacks.map((stack) => flow.createStack(stack));
  images.forEach((image, i) => {
    const column = columns[content.classes ? 0 : 1 - i]; // the encoder reads the second view first
    column?.prepend(create("figure", { class: "plain" }, fitImage(image)), createArrow());
  });
  if (content.classes) {
    const classes = create("div", { class: "flow-output" }, ...content.classes.map(([name, share]) => createShareBar(name, share)));
    (columns.at(-1) ?? container).append(createArrow(), classes);
  }
  const total = Math.max(1, flow.depth);
  const hint = content.classes ? strings.overviewImage : strings.overviewPair;
  fillCard(container, page, signal, { total, label: strings.layerStep, draw: (step) => flow.showDepth(step), columns, hint });
}

function fitImage(image) {
  const canvas = create("canvas", { class: "picture-canvas" });
  const side = 96;
  Object.assign(canvas, { width: side, height: side });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, side, side);
  return canvas;
}

/** Fill the card with the picture and a stepper; the last step is shown first. */
function fillCard(container, page, signal, { total, label, draw, columns, hint }) {
  const { strings } = page;
  const picture = create("div", { class: "flow" }, ...columns);
  let isReady = false;
  const stepper = createStepper(total - 1, label, strings, signal, (step) => {
    draw(step);
    picture.classList.toggle("step-even", step % 2 === 0); // restarts the animation of the blocks
    picture.classList.toggle("step-odd", step % 2 === 1);
    if (!isReady) return;
    picture.classList.add("animated");
    state.step = step === total - 1 ? null : step;
    page.saveView({ replace: true });
  });
  container.append(create("section", { class: "card" },
    create("h2", { text: strings.overviewTitle }),
    create("p", { class: "prose", text: hint }),
    stepper.element,
    picture,
    create("p", { class: "hint", text: strings.overviewLegend })));
  stepper.go(state.step === null ? total - 1 : page.limit(strings.stepField, state.step, total));
  isReady = true;
}

function openSearch(page, step) {
  page.open("beam", { step });
}

/** The blocks of all stacks. */
class Flow {
  constructor(page, { content, arrays }) {
    Object.assign(this, { page, strings: page.strings, arrays, normalised: content.normalised, stacks: [], depth: 0 });
  }

  /** Create the column of a stack: embedding, layers, and an arrow between blocks. */
  createStack({ name, tokens, layers }) {
    const { strings, page } = this;
    const column = create("div", { class: "flow-stack" }, create("h3", { text: strings.stacks[name] ?? name }));
    const isText = page.model.sections.includes("translate");
    const stack = { name, blocks: [] };
    const add = (parent, options) => {
      const block = new FlowBlock(this, { tokens, depth: this.depth, ...options });
      stack.blocks.push(block);
      this.depth += 1;
      parent.append(block.element);
    };
    column.append(createTokens(tokens, isText, strings));
    const key = (part) => `${name}.${part}`;
    if (this.arrays[key("embedding")]) {
      column.append(createArrow());
      const embedding = isText ? strings.blocks.embedding : strings.blocks.patches;
      add(column, { title: embedding, output: key("embedding"), open: () => page.open(isText ? "translate" : "image"), why: strings.whyEmbedding });
    }
    if (this.arrays[key("input")]) {
      column.append(createArrow());
      const title = this.normalised ? strings.blocks.norm : strings.blocks.positions;
      add(column, { title, output: key("input"), open: () => page.open("positions"), why: strings.whyPositions });
    }
    layers.forEach((layer, i) => {
      column.append(createArrow());
      const title = create("h4", { text: `${strings.layer(i)} · ${strings.layerSize(layer)}` });
      const box = create("div", { class: "flow-layer" }, title);
      for (const sublayer of layer.sublayers) this.addSublayer(add, box, layer, sublayer, name);
      column.append(box);
    });
    this.stacks.push(stack);
    return column;
  }

  addSublayer(add, box, layer, { kind, name, key }, stack) {
    const { page, strings } = this;
    const isText = page.model.sections.includes("translate");
    const module = kind === "feed_forward" ? `${layer.name}.attention` : name;
    const { sections } = page.model;
    const has = (section) => sections.includes(section) || sections.includes(`image_${section}`);
    const openArithmetic = (step) => (has("arithmetic") ? page.open("arithmetic", { name: module, step }) : page.open("image"));
    const openAttention = () => (has("attention") ? page.open("attention", { name: module, head: layer.heads }) : page.open("image"));
    const isAttention = kind !== "feed_forward";
    const title = strings.blocks[kind === "attention" && stack === "decoder" && isText ? "masked" : kind];
    add(box, {
      title,
      map: isAttention ? `${key}.map` : undefined,
      output: isAttention ? undefined : `${key}.update`,
      open: isAttention ? openAttention : () => openArithmetic(8),
      why: strings.why[kind],
    });
    add(box, {
      title: layer.preNorm ? strings.blocks.add : strings.blocks.addNorm,
      output: `${key}.output`,
      open: () => openArithmetic(isAttention ? 7 : 8),
      why: layer.preNorm ? strings.whyAdd : strings.whyAddNorm,
    });
  }

  /** Show the state when the token at a step is predicted: the decoder has read the tokens up to it. */
  showToken(step) {
    for (const { name, blocks } of this.stacks) {
      for (const block of blocks) block.show(name === "decoder" ? step : null);
    }
  }

  /** Show the blocks up to a depth; later ones are dimmed. */
  showDepth(step) {
    for (const { blocks } of this.stacks) {
      for (const block of blocks) {
        block.show(null);
        block.element.classList.toggle("later", block.depth > step);
      }
    }
  }
}

/** Create a list of the first tokens, or the number of patches. */
function createTokens(tokens, isText, strings) {
  if (!isText) return create("p", { class: "hint", text: strings.patchCount(tokens.length) });
  const chips = tokens.slice(0, CHIPS).map((token) => create("span", { class: "token", text: token }));
  if (tokens.length > CHIPS) chips.push(create("span", { class: "hint", text: strings.moreTokens(tokens.length - CHIPS) }));
  return create("p", { class: "tokens" }, ...chips);
}

function createArrow() {
  return create("span", { class: "flow-arrow", "aria-hidden": "true", text: "↓" });
}

/** Create the output layer: the most probable tokens at a step, and the tokens so far. */
function createOutputs({ candidates, outputs, vocabulary }, strings, open) {
  const bars = create("div", { class: "flow-output", "aria-live": "polite" });
  const tokens = create("p", { class: "tokens target" });
  const hint = create("p", { class: "hint", text: strings.outputHint(vocabulary) });
  let current = 0;
  const button = create("button", { class: "flow-block", on: { click: () => open(Math.max(0, current)) } },
    create("strong", { text: strings.blocks.output }));
  const element = create("div", { class: "flow-stack" }, button, hint, bars, tokens);
  const show = (step, isParallel) => {
    current = step;
    hint.hidden = isParallel; // the candidates of a single position are not shown
    bars.replaceChildren(...(step >= 0 && candidates[step] && !isParallel ? candidates[step].map(createCandidate) : []));
    tokens.replaceChildren(...outputs.slice(0, step + 1).map((token, i) =>
      create("span", { class: i === step && !isParallel ? "token pointed" : "token", text: token })));
  };
  return { element, show };
}

function createCandidate([label, probability, logit]) {
  return createShareBar(label, probability, `${formatNumber(logit, 2)} → `);
}
