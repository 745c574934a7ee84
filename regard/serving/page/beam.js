// Section: the tree of hypotheses as it grew, or the rounds of a model that writes all tokens at once.

import { ask } from "./api.js";
import { choice, field, make, numbers } from "./make.js";
import { showRounds } from "./rounds.js";
import { makeStepper } from "./stepper.js";
import { drawTree, winningPath } from "./tree.js";

export const section = { id: "beam", needs: ["beam"], reads: true, show };

const kept = {}; // what was chosen in place of the server's own search, by the model's name

async function show(place, page, signal) {
  const card = make("section", { class: "card" });
  place.append(card);
  const choices = (kept[page.model.name] ??= {});
  const draw = async () => {
    const question = { model: page.model.name, text: page.text, search: searchOf(choices) };
    const found = await ask("inspect/beam", question, signal);
    if (signal.aborted) return;
    const change = (values) => (Object.assign(choices, values), draw().catch((error) => page.tell(error)));
    const controls = make("div", { class: "bar controls" });
    card.replaceChildren(make("h2", { text: page.words.beamTitle }), controls);
    (found.length ? showRounds : showTree)(card, controls, found, page.words, change, signal);
  };
  await draw();
}

function searchOf(choices) {
  return choices.length_penalty === "none" ? { ...choices, alpha: 1 } : choices;
}

function showTree(card, controls, found, words, change, signal) {
  const { beam, length_penalty: penalty, alpha } = found.settings;
  controls.append(field(words.beamSize, choice(numbers([1, 2, 3, 4, 5, 8], beam), beam, (value) => change({ beam: Number(value) }))));
  const penalties = ["average", "wu", "none"].map((name) => [name, words.penalties[name]]);
  controls.append(field(words.penalty, choice(penalties, penalty, (value) => change({ length_penalty: value }))));
  if (penalty !== "none") {
    const alphas = numbers([0, 0.2, 0.6, 1, 1.5, 2], alpha);
    controls.append(field("α", choice(alphas, alpha, (value) => change({ alpha: Number(value) }))));
  }
  const last = Math.max(...found.tree.map((node) => node.step));
  const told = make("p", { class: "readout", "aria-live": "polite", text: words.pointAtNode });
  const answer = make("p", { class: "answer", text: found.text });
  const scroll = make("div", { class: "scroll treeplace", tabindex: 0, "aria-label": words.beamTitle });
  const tree = drawTree(scroll, found.tree, (node, fate) => (told.textContent = tellNode(node, fate, found.settings, words)));
  let follow = false;
  const [won] = winningPath(found.tree);
  const end = won === undefined ? last : found.tree[won].step;
  const stepper = makeStepper(last, words.step, words, signal, (step) => ((told.textContent = words.pointAtNode), tree.show(step, follow)), {
    at: end,
    then: () => end < last && (told.textContent = words.answerEnded(end + 1)),
  });
  scroll.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) event.preventDefault(), stepper.move(move);
  });
  card.append(answer, stepper.place, told, scroll, make("p", { class: "hint", text: words.treeHint }));
  stepper.go(last);
  follow = true;
}

function tellNode(node, became, settings, words) {
  const n = node.step + 1;
  const number = (value) => (value === null ? "−∞" : value.toFixed(3));
  const alpha = settings.alpha;
  const by = { average: `${n}^${alpha}`, wu: `((5+${n})/6)^${alpha}`, none: "1" }[settings.length_penalty];
  const fate = words.fates[became] ?? became;
  return `${node.token}: log p ${number(node.log_prob)} · Σ ${number(node.cumulative_log_prob)} ÷ ${by} = ${number(node.score)} · ${fate}`;
}
