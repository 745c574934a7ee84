// One attention head: its matrix and its lines, which highlight the same tokens.

import { makeScale } from "./colours.js";
import { describePoint, drawLegend, formatNumber } from "./description.js";
import { create } from "./dom.js";
import { colourOfHead, paintHeads } from "./head_colours.js";
import { Lines } from "./lines.js";
import { Matrix } from "./matrix.js";
import { mapRows, setData } from "./panel_data.js";
import { Pointing } from "./pointing.js";
import { isDark } from "./theme.js";
import { WeightsTable } from "./weights_table.js";

let panels = 0;

export class HeadPanel {
  constructor(strings) {
    this.strings = strings;
    this.title = create("h3", { class: "head-title" });
    this.hint = create("p", { class: "hint" });
    this.readout = create("p", { class: "readout", "aria-live": "polite", id: `readout-${panels++}` });
    this.low = create("span");
    this.high = create("span");
    this.colours = create("canvas");
    this.legend = create("span", { class: "legend" }, this.low, this.colours, this.high);
    this.pointing = new Pointing((point) => this.pointAt(point));
    const createCanvas = (name, label) =>
      create("canvas", { class: name, "aria-label": label, "aria-describedby": this.readout.id });
    this.matrix = new Matrix(createCanvas("matrix", strings.matrixLabel), this.pointing);
    this.lines = new Lines(createCanvas("lines", strings.linesLabel), this.pointing);
    this.table = new WeightsTable(strings);
    this.wide = create("div", { class: "picture wide" }, this.matrix.canvas);
    this.narrow = create("div", { class: "picture narrow" }, this.lines.canvas);
    const bar = create("div", { class: "bar" }, this.title, this.legend);
    const pictures = create("div", { class: "pictures" }, this.wide, this.narrow);
    this.element = create("div", { class: "head-panel" }, bar, this.hint, this.readout, pictures, this.table.element);
  }

  /**
   * Show `map` as a matrix. Lines always show `weights`, because single scores are not meaningful. `layers` are
   * [{map, head}] to draw in the colours of their heads, or [{map, colour}] to draw only their lines.
   */
  show(title, hint, { map, weights, rows, columns, layers }, zoom) {
    this.title.textContent = title;
    setData(this.wide, () => mapRows(map, rows, columns));
    this.hint.textContent = hint;
    const scale = makeScale(isDark(), map.signed);
    this.heads = (layers ?? []).filter(({ head }) => head !== undefined);
    const lines = layers?.map((layer) => ({ ...layer, colour: layer.colour ?? colourOfHead(layer.head) }));
    const image = this.heads.length ? paintHeads(layers.map((layer) => layer.map), layers.map(({ head }) => head), isDark()) : undefined;
    this.matrix.show(map, rows, columns, scale, this.wide.clientWidth - 4, zoom, image);
    this.lines.show(weights, rows, columns, this.narrow.clientWidth - 4, zoom, lines);
    this.table.show(map, rows, columns);
    this.legend.hidden = this.heads.length > 0;
    drawLegend(this.colours, this.low, this.high, map, scale);
    this.pointing.pin(null);
  }

  pointAt(point) {
    if (!this.matrix.map) return;
    this.point = point;
    if (this.frame) return; // draw at most once per frame
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.matrix.draw(this.point);
      this.lines.draw(this.point);
      this.readout.textContent = this.describe(this.point) || this.strings.pointHint;
    });
  }

  describe(point) {
    const { map, rows, columns } = this.matrix;
    const isCell = point?.row !== undefined && point.column !== undefined;
    if (!isCell || !this.heads.length) return describePoint(map, rows, columns, point, this.strings);
    const valueOf = ({ values }) => formatNumber(values[point.row * map.columns + point.column]);
    const values = this.heads.map((layer) => `${this.strings.head} ${layer.head} ${valueOf(layer.map)}`);
    return `${rows[point.row]} → ${columns[point.column]}: ${values.join(" · ")}`;
  }
}
