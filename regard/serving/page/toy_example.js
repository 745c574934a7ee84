// An editable example of attention with two tokens of width 4. It is computed in the browser.

import { create, createField, createSlider } from "./dom.js";

const MATRICES = ["q", "k", "v"];
const INITIAL = {
  q: [[1, 0, 1, 0], [0, 1, 0, 1]],
  k: [[1, 0, 1, 0], [0, 1, 0, 1]],
  v: [[1, 2, 3, 4], [4, 3, 2, 1]],
  scaled: true,
  causal: false,
  sharpness: 1,
};
let state = structuredClone(INITIAL);

/** Restore the first numbers and settings. */
export function resetToyExample() {
  state = structuredClone(INITIAL);
}

/** Return all intermediate results of softmax(q kᵀ · scale) v. */
export function attend({ q, k, v, scaled, causal, sharpness }) {
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const scale = (scaled ? 1 / Math.sqrt(q[0].length) : 1) * sharpness;
  const products = q.map((query) => k.map((key) => dot(query, key)));
  const scores = products.map((row, i) => row.map((x, j) => (causal && j > i ? -Infinity : x * scale)));
  const weights = scores.map((row) => {
    const maximum = Math.max(...row);
    const exponentials = row.map((x) => Math.exp(x - maximum));
    const sum = exponentials.reduce((a, b) => a + b);
    return exponentials.map((x) => x / sum);
  });
  const output = weights.map((row) => v[0].map((_, d) => row.reduce((sum, w, j) => sum + w * v[j][d], 0)));
  return { products, scores, weights, output, scale };
}

export function showToyExample(container, strings) {
  const results = create("div", { class: "results", "aria-live": "polite" });
  const draw = () => {
    const { products, scores, weights, output, scale } = attend(state);
    results.replaceChildren(
      createTable("QKᵀ", products),
      createTable(`QKᵀ × ${format(scale)}`, scores),
      createTable("softmax", weights, "weights"),
      createTable("softmax · V", output),
    );
  };
  const createCheckbox = (key, text) => {
    const checkbox = create("input", { type: "checkbox" });
    checkbox.checked = state[key];
    checkbox.addEventListener("change", () => {
      state[key] = checkbox.checked;
      draw();
    });
    return create("label", { class: "field" }, checkbox, create("span", { text }));
  };
  const setSharpness = (sharpness) => {
    state.sharpness = sharpness;
    draw();
  };
  const slider = createSlider({ min: 0, max: 4, step: 0.1, value: state.sharpness }, setSharpness, (x) => `× ${x}`);
  container.append(
    create("h2", { text: strings.toyTitle }),
    create("p", { class: "hint", text: strings.toyHint }),
    create("div", { class: "results" }, ...MATRICES.map((name) => createInputs(name, draw))),
    create("div", { class: "bar controls" },
      createCheckbox("scaled", "÷ √4"),
      createCheckbox("causal", strings.mask),
      createField(strings.sharpness, slider)),
    results);
  draw();
}

/** Create a table of inputs for the two vectors of q, k or v. */
function createInputs(name, onChange) {
  const rows = state[name].map((vector, i) => {
    const cells = vector.map((value, d) => {
      const input = create("input", { type: "number", step: 0.5, value, "aria-label": `${name}${i + 1} ${d + 1}` });
      input.addEventListener("input", () => {
        vector[d] = Math.max(-99, Math.min(99, Number(input.value) || 0));
        onChange();
      });
      return create("td", {}, input);
    });
    return create("tr", {}, create("th", { text: `${name}${"₁₂"[i]}` }), ...cells);
  });
  return create("table", { class: "toy-table" }, create("tbody", {}, ...rows));
}

function createTable(title, rows, className = "") {
  const createCell = (value) => create("td", { class: "number", text: format(value) });
  const body = rows.map((row) => create("tr", {}, ...row.map(createCell)));
  return create("table", { class: `toy-table ${className}` },
    create("caption", { text: title }),
    create("tbody", {}, ...body));
}

function format(value) {
  return value === -Infinity ? "−∞" : String(Math.round(value * 100) / 100).replace("-", "−");
}
