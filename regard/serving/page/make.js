// Elements without markup in strings: text stays text.

/** An element with properties (class, text, on: {event: listener}, others as attributes) and children. */
export function make(tag, { class: name, text, on, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  for (const [event, listener] of Object.entries(on ?? {})) element.addEventListener(event, listener);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined) element.setAttribute(key, String(value));
  }
  element.append(...children);
  return element;
}

/** A labelled control. */
export function field(label, control) {
  return make("label", { class: "field" }, make("span", { text: label }), control);
}

/** A select of [value, text] pairs; `onChange(value)`. */
export function choice(pairs, chosen, onChange) {
  const select = make("select", { on: { change: () => onChange(select.value) } });
  for (const [value, text] of pairs) {
    const option = make("option", { value, text });
    option.selected = String(value) === String(chosen);
    select.append(option);
  }
  return select;
}

/** Numbers to choose among, what is chosen now always among them. */
export function numbers(sizes, now) {
  return [...new Set([...sizes, now])].sort((a, b) => a - b).map((size) => [size, size]);
}

/** A slider with its value written beside it; `onChange(number)` while it moves. */
export function slider({ min, max, step, value }, onChange, write = String) {
  const shown = make("output", { text: write(value) });
  const range = make("input", { type: "range", min, max, step, value });
  range.addEventListener("input", () => {
    shown.textContent = write(Number(range.value));
    onChange(Number(range.value));
  });
  return make("span", { class: "slider" }, range, shown);
}

/** Calls the last call of several only, after a rest. */
export function calmly(work, milliseconds = 250) {
  let waiting;
  return (...values) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => work(...values), milliseconds);
  };
}
