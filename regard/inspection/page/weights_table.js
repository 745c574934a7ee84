// A map as a table for screen readers, and for copying: the largest values of each query.

import { strongest } from "./maps.js";

const LISTED_KEYS = 5; // keys for each query

/** A details element whose table is filled when it is opened. */
export class WeightsTable {
  constructor(strings) {
    this.strings = strings;
    this.element = document.createElement("details");
    this.element.className = "weights-table";
    const summary = document.createElement("summary");
    summary.textContent = strings.weightsTable;
    this.element.append(summary);
    this.element.addEventListener("toggle", () => this.fill());
  }

  show(map, rows, columns) {
    Object.assign(this, { map, rows, columns, isFilled: false });
    this.fill();
  }

  fill() {
    if (!this.element.open || this.isFilled || !this.map) return;
    this.isFilled = true;
    const { map, rows, columns, strings } = this;
    const table = document.createElement("table");
    addRow(table.createTHead(), [strings.queryColumn, strings.largestWeights], ["col", "col"]);
    const body = table.createTBody();
    rows.forEach((label, row) => {
      const weights = strongest(map, row, LISTED_KEYS).map(([column, weight]) => `${columns[column]} ${weight.toFixed(3)}`);
      addRow(body, [label, weights.join(", ")], ["row", null]);
    });
    this.element.querySelector("table")?.remove();
    this.element.append(table);
  }
}

/** Append a row; `scopes` are those of the header cells, null for cells with data. */
function addRow(section, texts, scopes) {
  const row = section.insertRow();
  texts.forEach((text, i) => {
    const cell = document.createElement(scopes[i] ? "th" : "td");
    if (scopes[i]) cell.scope = scopes[i];
    cell.textContent = text;
    row.append(cell);
  });
}
