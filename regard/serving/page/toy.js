// The worked example, to play with: two tokens, four numbers each; nothing is asked of the server.

import { make, slider } from "./make.js";

const VECTORS = ["q", "k", "v"];
const kept = {
  q: [[1, 0, 1, 0], [0, 1, 0, 1]],
  k: [[1, 0, 1, 0], [0, 1, 0, 1]],
  v: [[1, 2, 3, 4], [4, 3, 2, 1]],
  scaled: true,
  causal: false,
  times: 1,
};

/** softmax(q kᵀ · scale) v with everything on the way. */
export function attend({ q, k, v, scaled, causal, times }) {
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const scale = (scaled ? 1 / Math.sqrt(q[0].length) : 1) * times;
  const products = q.map((query) => k.map((key) => dot(query, key)));
  const scores = products.map((row, i) => row.map((x, j) => (causal && j > i ? -Infinity : x * scale)));
  const weights = scores.map((row) => {
    const most = Math.max(...row);
    const powers = row.map((x) => Math.exp(x - most));
    const total = powers.reduce((a, b) => a + b);
    return powers.map((x) => x / total);
  });
  const output = weights.map((row) => v[0].map((_, d) => row.reduce((sum, w, j) => sum + w * v[j][d], 0)));
  return { products, scores, weights, output, scale };
}

export function showToy(place, words) {
  const results = make("div", { class: "results", "aria-live": "polite" });
  const draw = () => {
    const { products, scores, weights, output, scale } = attend(kept);
    results.replaceChildren(
      table("QKᵀ", products, words),
      table(`QKᵀ × ${round(scale)}`, scores, words),
      table("softmax", weights, words, "weights"),
      table("softmax · V", output, words),
    );
  };
  const inputs = make("div", { class: "results" }, ...VECTORS.map((name) => inputTable(name, draw)));
  const check = (key, text) => {
    const box = make("input", { type: "checkbox", on: { change: () => ((kept[key] = box.checked), draw()) } });
    box.checked = kept[key];
    return make("label", { class: "field check" }, box, make("span", { text }));
  };
  const sharpness = slider({ min: 0, max: 4, step: 0.1, value: kept.times }, (value) => ((kept.times = value), draw()), (x) => `× ${x}`);
  const controls = make("div", { class: "bar controls" }, check("scaled", "÷ √4"), check("causal", words.mask));
  controls.append(make("label", { class: "field" }, make("span", { text: words.sharpness }), sharpness));
  place.append(make("h2", { text: words.toyTitle }), make("p", { class: "hint", text: words.toyHint }), inputs, controls, results);
  draw();
}

function inputTable(name, onChange) {
  const rows = kept[name].map((vector, i) =>
    make("tr", {}, make("th", { text: `${name}${"₁₂"[i]}` }), ...vector.map((value, d) => {
      const input = make("input", { type: "number", step: 0.5, value, "aria-label": `${name}${i + 1} ${d + 1}` });
      input.addEventListener("input", () => {
        kept[name][i][d] = Math.max(-99, Math.min(99, Number(input.value) || 0));
        onChange();
      });
      return make("td", {}, input);
    })));
  return make("table", { class: "toytable" }, make("tbody", {}, ...rows));
}

function table(title, rows, words, name = "") {
  const body = rows.map((row) => make("tr", {}, ...row.map((value) => make("td", { class: "number", text: round(value) }))));
  return make("table", { class: `toytable ${name}` }, make("caption", { text: title }), make("tbody", {}, ...body));
}

function round(value) {
  return value === -Infinity ? "−∞" : String(Math.round(value * 100) / 100).replace("-", "−");
}
