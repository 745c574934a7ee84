// Buttons and a slider that go through steps, one by one or by themselves.

import { make } from "./make.js";

const PACE = 900; // milliseconds a step

/** {place, go, move}; `onStep(number)` for steps from 0 to `last`; `count(number)` names one. It plays until the signal, and rests at `rest.at`, where `rest.then()` is called. */
export function makeStepper(last, count, words, signal, onStep, rest = { at: last, then: () => {} }) {
  let step = last;
  let playing = null;
  const position = make("span", { class: "hint" });
  const range = make("input", { type: "range", min: 0, max: last, step: 1, value: last, "aria-label": words.steps });
  const go = (to) => {
    step = Math.min(last, Math.max(0, to));
    range.value = step;
    position.textContent = count(`${step + 1} / ${last + 1}`);
    onStep(step);
  };
  const stop = () => {
    clearInterval(playing);
    playing = null;
    play.textContent = words.play;
  };
  const start = () => {
    if (step === last) go(0);
    play.textContent = words.pause;
    playing = setInterval(() => {
      go(step + 1);
      if (step === rest.at) rest.then();
      if (step === rest.at || step === last) stop();
    }, PACE);
  };
  const by = (text, label, move) => make("button", { class: "tool", text, "aria-label": label, on: { click: () => (stop(), go(move())) } });
  const play = make("button", { class: "tool play", text: words.play, on: { click: () => (playing ? stop() : start()) } });
  range.addEventListener("input", () => (stop(), go(Number(range.value))));
  signal.addEventListener("abort", stop);
  const place = make("div", { class: "bar controls stepper" });
  place.append(by("⇤", words.first, () => 0), by("‹", words.back, () => step - 1), range, by("›", words.next, () => step + 1));
  place.append(play, position);
  return { place, go, move: (steps) => (stop(), go(step + steps)) };
}
