// The state of a view in the fragment of the address: #SECTION?model=…&text=…&NAME=VALUE. Servers do not receive it.
//
// A parameter is {initial, read, write}: `read(text)` returns a value, or undefined if the text is invalid; `write(value)`
// returns the text. A section states its parameters by the key of its state.

/** A whole number between two bounds, or null. */
export const integer = (initial = null, low = 0, high = 1e6) => number(initial, low, high, /^-?\d+$/);

/** A number between two bounds, or null. */
export function number(initial = null, low = -1e6, high = 1e6, pattern = /^-?\d+(\.\d+)?$/) {
  const isValid = (text) => pattern.test(text) && Number(text) >= low && Number(text) <= high;
  return { initial, read: (text) => (isValid(text) ? Number(text) : undefined), write: String };
}

/** Any text. */
export const text = (initial = null) => ({ initial, read: (value) => value, write: (value) => value });

/** One of several texts. */
export const choice = (options, initial = null) => ({ ...text(initial), read: (value) => (options.includes(value) ? value : undefined) });

export const toggle = (initial = false) =>
  ({ initial, read: (value) => ({ 0: false, 1: true })[value], write: (value) => (value ? "1" : "0") });

/** Factors of heads, {attention: {head: factor}}, as "decoder.0.cross/1*0.5,…". */
export const factors = () => ({ initial: {}, read: readFactors, write: writeFactors });

function readFactors(value) {
  const result = {};
  for (const item of value.split(",").filter(Boolean)) {
    const [, name, head, factor] = /^([\w.]+)\/(\d+)\*(-?\d+(?:\.\d+)?)$/.exec(item) ?? [];
    if (name === undefined || Math.abs(factor) > 10) return undefined;
    (result[name] ??= {})[head] = Number(factor);
  }
  return result;
}

function writeFactors(value) {
  const items = Object.entries(value).map(([name, heads]) =>
    Object.entries(heads).map(([head, factor]) => `${name}/${head}*${factor}`));
  return items.flat().join(",");
}

/** Return the initial state of parameters. Each call returns new objects. */
export function initialState(parameters) {
  return Object.fromEntries(Object.entries(parameters).map(([key, { initial }]) => [key, structuredClone(initial)]));
}

/**
 * Return a function that says whether a section is shown for another model, or for another model or sentence, than the last
 * time, so that its state has to be reset. It is kept if it was given with the request to show the section, and a second model shares
 * that of the first.
 */
export function inputWatcher() {
  let last = null;
  return ({ model, sentence, isStateGiven, isSecond }) => {
    if (isSecond) return { isOtherModel: false, isOtherInput: false };
    const before = last;
    last = { model: model.name, sentence };
    if (isStateGiven || !before) return { isOtherModel: false, isOtherInput: false };
    const isOtherModel = before.model !== model.name;
    return { isOtherModel, isOtherInput: isOtherModel || before.sentence !== sentence };
  };
}

/** Return the fragment of a section for [parameters, state] pairs. Initial values are omitted, except those in `always`. */
export function formatAddress(section, pairs, always = []) {
  const values = new URLSearchParams();
  for (const [parameters, state] of pairs) {
    for (const [key, { initial, write }] of Object.entries(parameters)) {
      const value = state[key];
      if (value === null || value === undefined) continue;
      if (always.includes(key) || write(value) !== (initial === null ? null : write(initial))) values.set(key, write(value));
    }
  }
  return `#${section}?${values}`;
}

/** Return {section, values} of a fragment; `values` is null if the fragment names only a section. */
export function parseAddress(fragment) {
  const [section, ...query] = fragment.replace(/^#/, "").split("?");
  return { section, values: query.length ? new URLSearchParams(query.join("?")) : null };
}

/** Set a state to the values of an address, and to initial values where it has none. Return the invalid [key, text] pairs. */
export function readState(parameters, state, values) {
  Object.assign(state, initialState(parameters));
  const invalid = [];
  for (const [key, parameter] of Object.entries(parameters)) {
    if (!values.has(key)) continue;
    const value = parameter.read(values.get(key));
    if (value === undefined) invalid.push([key, values.get(key)]);
    else state[key] = value;
  }
  return invalid;
}
