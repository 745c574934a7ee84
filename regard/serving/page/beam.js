// Section: the tree of hypotheses as it grew, or the rounds of a model that writes all tokens at once.

import { ask } from "./api.js";
import { colourOf, makeScale, needsLightText } from "./colours.js";
import { choice, field, make, slider } from "./make.js";
import { isDark } from "./theme.js";
import { drawTree } from "./tree.js";

export const section = { id: "beam", needs: ["beam"], reads: true, show };

const kept = { beam: 3, length_penalty: "average", alpha: 1, rounds: 4 };

async function show(place, page, signal) {
  const card = make("section", { class: "card" });
  place.append(card);
  const draw = async () => {
    const question = { model: page.model.name, text: page.text, search: searchOf(page.model) };
    const found = await ask("inspect/beam", question, signal);
    if (signal.aborted) return;
    const change = (values) => (Object.assign(kept, values), draw().catch((error) => page.tell(error)));
    const controls = make("div", { class: "bar controls" });
    const shown = found.tree.length ? showTree : showRounds;
    card.replaceChildren(make("h2", { text: page.words.beamTitle }), controls);
    shown(card, controls, found, page.words, change);
  };
  await draw();
}

function searchOf(model) {
  if (model.kind === "parallel") return {};
  const { beam, length_penalty, alpha } = kept;
  return length_penalty === "none" ? { beam, length_penalty, alpha: 1 } : { beam, length_penalty, alpha };
}

function showTree(card, controls, found, words, change) {
  const sizes = [1, 2, 3, 4, 5, 8].map((size) => [size, size]);
  controls.append(field(words.beamSize, choice(sizes, kept.beam, (value) => change({ beam: Number(value) }))));
  const penalties = ["average", "wu", "none"].map((name) => [name, words.penalties[name]]);
  controls.append(field(words.penalty, choice(penalties, kept.length_penalty, (value) => change({ length_penalty: value }))));
  if (kept.length_penalty !== "none") {
    const alphas = [0, 0.2, 0.6, 1, 1.5, 2].map((alpha) => [alpha, alpha]);
    controls.append(field("α", choice(alphas, kept.alpha, (value) => change({ alpha: Number(value) }))));
  }
  const last = Math.max(...found.tree.map((node) => node.step));
  const told = make("p", { class: "told", "aria-live": "polite", text: words.pointAtNode });
  const answer = make("p", { class: "answer", text: found.text });
  const scroll = make("div", { class: "scroll treeplace", tabindex: 0, "aria-label": words.beamTitle });
  const tree = drawTree(scroll, found.tree, (node) => (told.textContent = tellNode(node, found.settings, words)));
  let step = last;
  const position = make("span", { class: "hint" });
  const range = make("input", { type: "range", min: 0, max: last, step: 1, value: last, "aria-label": words.step });
  const go = (to, follow = true) => {
    step = Math.min(last, Math.max(0, to));
    range.value = step;
    tree.show(step, follow);
    position.textContent = `${words.step} ${step + 1} / ${last + 1}`;
  };
  range.addEventListener("input", () => go(Number(range.value)));
  const button = (text, name, move) => make("button", { class: "tool", text, "aria-label": name, on: { click: () => go(move(step)) } });
  const stepper = make("div", { class: "bar controls stepper" });
  stepper.append(button("⇤", words.first, () => 0), button("◀", words.back, (s) => s - 1), range);
  stepper.append(button("▶", words.next, (s) => s + 1), position);
  scroll.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) event.preventDefault(), go(step + move);
  });
  card.append(answer, stepper, told, scroll, make("p", { class: "hint", text: words.treeHint }));
  go(last, false);
}

function tellNode(node, settings, words) {
  const n = node.step + 1;
  const number = (value) => (value === null ? "−∞" : value.toFixed(3));
  const alpha = settings.alpha;
  const by = { average: `${n}^${alpha}`, wu: `((5+${n})/6)^${alpha}`, none: "1" }[settings.length_penalty];
  const fate = words.fates[node.fate] ?? node.fate;
  return `${node.piece}: log p ${number(node.logp)} · Σ ${number(node.total)} ÷ ${by} = ${number(node.score)} · ${fate}`;
}

function showRounds(card, controls, found, words) {
  const scale = makeScale(isDark(), false);
  const rows = found.rounds.map((round, i) => {
    const tokens = round.pieces.map((piece, at) => {
      const share = round.probabilities[at];
      const token = make("span", { class: round.written[at] ? "token written" : "token", text: piece, title: `${(100 * share).toFixed(0)}%` });
      token.style.backgroundColor = colourOf(scale, share);
      token.style.color = needsLightText(scale, share) ? "#fff" : "#111";
      return token;
    });
    return make("div", { class: "round" }, make("h3", { text: `${words.round} ${i + 1}` }), make("p", { class: "tokens" }, ...tokens));
  });
  const place = make("div", {}, ...rows);
  const go = slider({ min: 1, max: rows.length, step: 1, value: rows.length }, (n) => rows.forEach((row, i) => (row.hidden = i >= n)));
  controls.append(field(words.round, go));
  card.append(make("p", { class: "answer", text: found.text }), place, make("p", { class: "hint", text: words.roundsHint }));
}
