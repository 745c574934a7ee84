// One attention head: its matrix and its lines, which highlight the same tokens.

import { makeScale } from "./colours.js";
import { describePoint, drawLegend } from "./description.js";
import { create } from "./dom.js";
import { Lines } from "./lines.js";
import { Matrix } from "./matrix.js";
import { mapRows, setData } from "./panel_data.js";
import { isDark } from "./theme.js";

export class HeadPanel {
  constructor(strings) {
    this.strings = strings;
    this.title = create("h3", { class: "head-title" });
    this.hint = create("p", { class: "hint" });
    this.readout = create("p", { class: "readout", "aria-live": "polite" });
    this.low = create("span");
    this.high = create("span");
    this.colours = create("canvas");
    const legend = create("span", { class: "legend" }, this.low, this.colours, this.high);
    const pointAt = (point) => this.pointAt(point);
    this.matrix = new Matrix(create("canvas", { class: "matrix" }), pointAt);
    this.lines = new Lines(create("canvas", { class: "lines" }), pointAt);
    this.wide = create("div", { class: "picture wide" }, this.matrix.canvas);
    this.narrow = create("div", { class: "picture narrow" }, this.lines.canvas);
    const bar = create("div", { class: "bar" }, this.title, legend);
    const pictures = create("div", { class: "pictures" }, this.wide, this.narrow);
    this.element = create("div", { class: "head-panel" }, bar, this.hint, this.readout, pictures);
  }

  /** Show `map` as a matrix. Lines always show `weights`, because single scores are not meaningful. */
  show(title, hint, map, weights, rows, columns, zoom) {
    this.title.textContent = title;
    setData(this.wide, () => mapRows(map, rows, columns));
    this.hint.textContent = hint;
    const scale = makeScale(isDark(), map.signed);
    this.matrix.show(map, rows, columns, scale, this.wide.clientWidth - 4, zoom);
    this.lines.show(weights, rows, columns, this.narrow.clientWidth - 4);
    drawLegend(this.colours, this.low, this.high, map, scale);
    this.pointAt(null);
  }

  pointAt(point) {
    const { map, rows, columns } = this.matrix;
    if (!map || (!point && !this.point)) return;
    this.point = point;
    if (this.frame) return; // draw at most once per frame
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.matrix.draw(this.point);
      this.lines.draw(this.point);
      this.readout.textContent = describePoint(map, rows, columns, this.point, this.strings);
    });
  }
}
