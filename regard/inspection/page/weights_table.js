// A map as a table for screen readers, and for copying: the largest values of each query.

import { formatNumber } from "./description.js";
import { create, createScroller } from "./dom.js";
import { strongest } from "./maps.js";

const LISTED_KEYS = 5; // keys for each query

/** A details element whose table is filled when it is opened. */
export class WeightsTable {
  constructor(strings) {
    this.strings = strings;
    this.element = create("details", { class: "weights-table", on: { toggle: () => this.fill() } },
      create("summary", { text: strings.weightsTable }));
  }

  show(map, rows, columns) {
    Object.assign(this, { map, rows, columns, isFilled: false });
    this.fill();
  }

  fill() {
    if (!this.element.open || this.isFilled || !this.map) return;
    this.isFilled = true;
    const { map, rows, columns, strings } = this;
    const header = [strings.queryColumn, strings.largestWeights].map((text) => create("th", { text, scope: "col" }));
    const queries = rows.map((label, row) => {
      const weights = strongest(map, row, LISTED_KEYS).map(([column, weight]) => `${columns[column]} ${formatNumber(weight)}`);
      return create("tr", {}, create("th", { text: label, scope: "row" }), create("td", { text: weights.join(", ") }));
    });
    const table = create("table", {},
      create("thead", {}, create("tr", {}, ...header)), create("tbody", {}, ...queries));
    this.element.querySelector("div")?.remove();
    this.element.append(createScroller("weights-scroll", strings.weightsTable, table));
  }
}
