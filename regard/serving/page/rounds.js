// The rounds of a model that writes all tokens at once: a row a round, a column a place of the canvas.

import { colourOf, makeScale, needsLightText } from "./colours.js";
import { choice, field, make, numbers } from "./make.js";
import { makeStepper } from "./stepper.js";
import { drawScale } from "./description.js";
import { isDark } from "./theme.js";

const percent = (share) => `${(100 * share).toFixed(0)}%`;

/** Fills `card`; `change(search)` asks again, with other iterations, lengths or another beam. */
export function showRounds(card, controls, found, words, change, signal) {
  controls.append(...makeChoices(found, words, change));
  const place = make("div");
  const show = (canvas) => place.replaceChildren(...showCanvas(canvas, words, signal));
  card.append(make("p", { class: "answer", text: found.text }));
  if (found.candidates.length > 1) card.append(makeResults(found.candidates, words, show));
  card.append(place);
  show(found.candidates[0]);
}

function makeChoices({ length, settings }, words, change) {
  const chooser = (name, sizes) =>
    field(words[name], choice(numbers(sizes, settings[name]), settings[name], (value) => change({ [name]: Number(value) })));
  if (length === "classifier") return [chooser("iterations", [1, 2, 3, 4, 6, 8, 10]), chooser("lengths", [1, 2, 3, 5, 8])];
  return length === "ctc" ? [chooser("beam", [1, 2, 4, 8])] : [];
}

/** What was found by each length, or by each path, to choose among. */
function makeResults(canvases, words, show) {
  const rows = canvases.map((canvas, i) => {
    const button = make("button", { class: "alternative", "aria-pressed": i === 0 });
    button.append(make("span", { class: "score", text: canvas.score.toFixed(3) }));
    button.append(make("span", { class: "score", text: `${canvas.iterations[0].tokens.length} ${words.canvasPlaces}` }));
    button.append(make("span", { text: canvas.text || "∅" }));
    button.addEventListener("click", () => {
      rows.forEach((row) => row.firstChild.setAttribute("aria-pressed", String(row.firstChild === button)));
      show(canvas);
    });
    return make("li", {}, button);
  });
  return make("ol", { class: "alternatives" }, ...rows);
}

function showCanvas({ iterations: rounds }, words, signal) {
  const scale = makeScale(isDark(), false);
  const told = make("p", { class: "readout", "aria-live": "polite", text: words.pointAtPlace });
  const rows = rounds.map((round, number) => {
    const cells = round.tokens.map((piece, at) => makeCell(rounds, number, at, scale, (sentence) => (told.textContent = sentence), words));
    return make("tr", {}, make("th", { text: words.round(number + 1) }), ...cells);
  });
  const table = make("table", { class: "rounds" }, make("tbody", {}, ...rows));
  const parts = [make("div", { class: "scroll" }, table), makeLegend(scale, words)];
  if (rounds.length === 1) return [told, ...parts, make("p", { class: "hint", text: words.oneRound })];
  let follow = false;
  const stepper = makeStepper(rounds.length - 1, words.round, words, signal, (step) => {
    rows.forEach((row, i) => {
      row.classList.toggle("later", i > step);
      row.classList.toggle("now", i === step);
    });
    if (follow) rows[step].scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  stepper.go(rounds.length - 1);
  follow = true;
  return [stepper.place, told, ...parts, make("p", { class: "hint", text: words.roundsHint })];
}

/** A place after a round: above, what was masked before the round wrote again; below, what stands there now. */
function makeCell(rounds, number, at, scale, say, words) {
  const { tokens: pieces, probabilities, predicted: written } = rounds[number];
  const again = number > 0 && written[at];
  const share = probabilities[at];
  const token = make("button", { class: `token ${again ? "again" : ""}`, text: pieces[at] });
  token.style.backgroundColor = colourOf(scale, share);
  token.style.color = needsLightText(scale, share) ? "#fff" : "#111";
  const cell = make("td");
  let sentence = `${words.round(number + 1)} · ${pieces[at]} ${percent(share)} · ${words.canvasFates[again ? "again" : number ? "kept" : "first"]}`;
  if (again) {
    const before = rounds[number - 1];
    cell.append(make("s", { class: "was", text: before.tokens[at] }));
    token.classList.toggle("other", before.tokens[at] !== pieces[at]);
    sentence += `: ${before.tokens[at]} ${percent(before.probabilities[at])} → ${pieces[at]} ${percent(share)}`;
  }
  for (const event of ["pointerenter", "focus", "click"]) token.addEventListener(event, () => say(sentence));
  cell.append(token);
  return cell;
}

function makeLegend(scale, words) {
  const canvas = make("canvas");
  drawScale(canvas, scale);
  return make("p", { class: "legend" }, make("span", { text: `${words.probability} 0%` }), canvas, make("span", { text: "100%" }));
}
