// One head at large: its matrix and its lines, which point at the same tokens.

import { makeScale } from "./colours.js";
import { Lines } from "./lines.js";
import { make } from "./make.js";
import { Matrix } from "./matrix.js";
import { describePoint, drawLegend } from "./description.js";
import { isDark } from "./theme.js";

export class HeadPanel {
  constructor(words) {
    this.words = words;
    this.title = make("h3", { class: "chosen" });
    this.facts = make("p", { class: "hint" });
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    this.low = make("span");
    this.high = make("span");
    this.colours = make("canvas");
    const legend = make("span", { class: "legend" }, this.low, this.colours, this.high);
    const pointAt = (point) => this.pointAt(point);
    this.matrix = new Matrix(make("canvas", { class: "matrix" }), pointAt);
    this.lines = new Lines(make("canvas", { class: "lines" }), pointAt);
    this.wide = make("div", { class: "picture wide" }, this.matrix.canvas);
    this.narrow = make("div", { class: "picture narrow" }, this.lines.canvas);
    const bar = make("div", { class: "bar" }, this.title, legend);
    const pictures = make("div", { class: "pictures" }, this.wide, this.narrow);
    this.place = make("div", { class: "headpanel" }, bar, this.facts, this.readout, pictures);
  }

  /** The matrix of `map`; lines are always drawn from `weights`, for a score is strong or weak beside others only. */
  show(title, facts, map, weights, rows, columns, zoom) {
    this.title.textContent = title;
    this.facts.textContent = facts;
    const scale = makeScale(isDark(), map.signed);
    this.matrix.show(map, rows, columns, scale, this.wide.clientWidth - 4, zoom);
    this.lines.show(weights, rows, columns, this.narrow.clientWidth - 4);
    drawLegend(this.colours, this.low, this.high, map, scale);
    this.pointAt(null);
  }

  pointAt(point) {
    const { map, rows, columns } = this.matrix;
    if (!map || (!point && !this.pointed)) return;
    this.pointed = point;
    if (this.waiting) return; // one drawing a frame is enough
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.matrix.draw(this.pointed);
      this.lines.draw(this.pointed);
      this.told.textContent = describePoint(map, rows, columns, this.pointed, this.words);
    });
  }
}
