// Numbers that are added to the cross-attention scores of source tokens: a chip for each token, and a slider.

import { create, createField, createSlider } from "./dom.js";

const LARGEST = 10;

/** A parameter of the address: {position: number} as "2*-3.5,4*1". */
export const biases = () => ({ initial: {}, read: readBiases, write: writeBiases });

function readBiases(value) {
  const result = {};
  for (const item of value.split(",").filter(Boolean)) {
    const [, position, number] = /^(\d{1,5})\*(-?\d+(?:\.\d+)?)$/.exec(item) ?? [];
    if (position === undefined || Math.abs(number) > LARGEST) return undefined;
    result[position] = Number(number);
  }
  return result;
}

function writeBiases(value) {
  return Object.entries(value).map(([position, number]) => `${position}*${number}`).join(",");
}

const formatBias = (value) => (value > 0 ? `+${value}` : String(value).replace("-", "−"));

/** Controls for the tokens of a source; `show(labels, values)` replaces them, `onChange(values)` reports a change. */
export class ScoreBias {
  constructor(strings, onChange) {
    Object.assign(this, { strings, onChange, selected: 0, labels: [], values: {} });
    this.tokens = create("p", { class: "tokens source", role: "group", "aria-label": strings.biasTitle });
    this.field = create("div", { class: "bar controls" });
    this.element = create("div", { class: "score-bias" },
      create("h2", { text: strings.biasTitle }),
      create("p", { class: "hint", text: strings.biasHint }),
      this.tokens, this.field);
  }

  show(labels, values) {
    const isSame = labels.join("\n") === this.labels.join("\n");
    Object.assign(this, { labels, values: { ...values } });
    if (isSame && this.tokens.children.length) return this.update();
    this.selected = Math.min(this.selected, labels.length - 1);
    this.tokens.replaceChildren(...labels.map((label, position) => create("button", {
      class: "token", on: { click: () => this.select(position) },
    })));
    return this.select(this.selected);
  }

  select(position) {
    this.selected = position;
    const range = { min: -LARGEST, max: LARGEST, step: 0.5, value: this.values[position] ?? 0 };
    const slider = createSlider(range, (value) => this.set(value), formatBias);
    this.field.replaceChildren(createField(this.labels[position], slider));
    this.update();
  }

  set(value) {
    if (value) this.values[this.selected] = value;
    else delete this.values[this.selected];
    this.update();
    this.onChange({ ...this.values });
  }

  update() {
    [...this.tokens.children].forEach((token, position) => {
      const value = this.values[position];
      token.textContent = value ? `${this.labels[position]} ${formatBias(value)}` : this.labels[position];
      token.classList.toggle("pointed", Boolean(value));
      token.setAttribute("aria-pressed", String(position === this.selected));
    });
  }
}
