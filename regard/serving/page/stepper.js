// Buttons and a slider to step through a sequence, or to play it.

import { create, createButton } from "./dom.js";

const MILLISECONDS_PER_STEP = 900;

/**
 * Return {element, go, move}. `onStep(step)` is called for steps from 0 to `last`; `stepLabel(text)` labels the position.
 * Playing pauses at `pause.at`, where `pause.then()` is called, and stops when the signal is aborted.
 */
export function createStepper(last, stepLabel, strings, signal, onStep, pause = { at: last, then: () => {} }) {
  let step = last;
  let timer = null;
  const position = create("span", { class: "hint" });
  const range = create("input", { type: "range", min: 0, max: last, step: 1, value: last, "aria-label": strings.steps });
  const go = (newStep) => {
    step = Math.min(last, Math.max(0, newStep));
    range.value = step;
    position.textContent = stepLabel(`${step + 1} / ${last + 1}`);
    onStep(step);
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    playButton.textContent = strings.play;
  };
  const start = () => {
    if (step === last) go(0);
    playButton.textContent = strings.pause;
    timer = setInterval(() => {
      go(step + 1);
      if (step === pause.at) pause.then();
      if (step === pause.at || step === last) stop();
    }, MILLISECONDS_PER_STEP);
  };
  const stopAndGo = (newStep) => {
    stop();
    go(newStep);
  };
  const playButton = createButton(strings.play, () => (timer ? stop() : start()));
  range.addEventListener("input", () => stopAndGo(Number(range.value)));
  signal.addEventListener("abort", stop);
  const element = create("div", { class: "bar controls stepper" },
    createButton("⇤", () => stopAndGo(0), { "aria-label": strings.firstStep }),
    createButton("‹", () => stopAndGo(step - 1), { "aria-label": strings.previousStep }),
    range,
    createButton("›", () => stopAndGo(step + 1), { "aria-label": strings.nextStep }),
    playButton, position);
  return { element, go, move: (steps) => stopAndGo(step + steps) };
}
