// Creation of DOM elements. Text is always set as text, never parsed as HTML.

export const SVG = "http://www.w3.org/2000/svg";

/** Create an element. Properties: class, text, on: {event: listener}; all others become attributes. */
export function create(tag, { class: className, text, on, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  for (const [event, listener] of Object.entries(on ?? {})) element.addEventListener(event, listener);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** Create an SVG element with a text. */
export function createSvg(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

/** Create a button with a text. */
export function createButton(text, onClick, attributes = {}) {
  return create("button", { class: "tool", text, on: { click: onClick }, ...attributes });
}

/** Create a part that scrolls its children; the keyboard reaches it while there is something to scroll. */
export function createScroller(className, label, ...children) {
  const element = create("div", { class: className, role: "region", "aria-label": label }, ...children);
  const observer = new ResizeObserver(() => {
    const { scrollWidth, clientWidth, scrollHeight, clientHeight } = element;
    element.tabIndex = scrollWidth > clientWidth || scrollHeight > clientHeight ? 0 : -1;
  });
  for (const part of [element, ...children]) observer.observe(part);
  return element;
}

/** Put a label in front of a control. */
export function createField(label, control) {
  return create("label", { class: "field" }, create("span", { text: label }), control);
}

/** Create a select element for [value, text] pairs; `onChange(value)`. */
export function createSelect(options, selected, onChange) {
  const select = create("select", { on: { change: () => onChange(select.value) } });
  for (const [value, text] of options) {
    const option = create("option", { value, text });
    option.selected = String(value) === String(selected);
    select.append(option);
  }
  return select;
}

/** Create a label with its share of a whole, 0 to 1, as a bar and, after `prefix`, as a percentage. */
export function createShareBar(label, share, prefix = "") {
  return create("div", { class: "class" },
    create("span", { text: label }),
    create("span", { class: "number", text: `${prefix}${(100 * share).toFixed(1)}%` }),
    create("meter", { min: 0, max: 1, value: share, "aria-label": label }));
}

/** Options of a select element for numbers, including the current value. */
export function numberOptions(numbers, current) {
  return [...new Set([...numbers, current])].sort((a, b) => a - b).map((number) => [number, number]);
}

/** Create a slider that shows its value; `onInput(number)`. */
export function createSlider({ min, max, step, value }, onInput, format = String) {
  const output = create("output", { text: format(value) });
  const range = create("input", { type: "range", min, max, step, value });
  range.addEventListener("input", () => {
    output.textContent = format(Number(range.value));
    onInput(Number(range.value));
  });
  return create("span", { class: "slider" }, range, output);
}

/** Delay calls of a function until there was no call for some time. */
export function debounce(callback, milliseconds = 250) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...values), milliseconds);
  };
}
