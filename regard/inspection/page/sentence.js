// A sentence and its translation as tokens; pointing at a token colours the tokens it is aligned with.

import { colourOf, textColourOn } from "./colours.js";
import { create } from "./dom.js";

/**
 * Source tokens above target tokens. Calls `onPoint` with {row} of a target or {column} of a source token, or null.
 * `pieces` are two lists that mark the tokens which continue the word before them.
 */
export class SentencePair {
  constructor(container, source, target, onPoint, pieces = [[], []]) {
    this.sources = source.map((label, column) => this.makeToken(label, { column }, onPoint));
    this.targets = target.map((label, row) => this.makeToken(label, { row }, onPoint));
    for (const [name, tokens] of [["source", this.sources], ["target", this.targets]]) {
      container.append(create("p", { class: `tokens ${name}` }, ...tokens));
    }
    for (const [i, tokens] of [this.sources, this.targets].entries()) {
      tokens.forEach((token, index) => token.classList.toggle("piece", Boolean(pieces[i][index])));
    }
  }

  /** Colours the tokens of the other sentence by their weights in `map`, (target × source). */
  show(map, scale, point) {
    for (const token of [...this.sources, ...this.targets]) {
      token.classList.remove("pointed");
      token.style.removeProperty("background-color");
      token.style.removeProperty("color");
    }
    if (!point) return;
    const byRow = point.row !== undefined;
    const others = byRow ? this.sources : this.targets;
    (byRow ? this.targets[point.row] : this.sources[point.column])?.classList.add("pointed");
    others.forEach((token, index) => {
      const weight = map.values[byRow ? point.row * map.columns + index : index * map.columns + point.column];
      const share = Math.min(1, Math.max(0, weight));
      token.style.backgroundColor = colourOf(scale, share);
      token.style.color = textColourOn(scale, share);
    });
  }

  makeToken(label, point, onPoint) {
    const token = create("button", { class: "token", text: label });
    for (const event of ["pointerenter", "focus", "click"]) token.addEventListener(event, () => onPoint(point));
    for (const event of ["pointerleave", "blur"]) token.addEventListener(event, () => onPoint(null));
    return token;
  }
}
