// Settings of the page that a browser keeps. A browser may forbid storage, for example in private windows.

/** Returns a stored text, or null. `area` is localStorage, or sessionStorage for what is kept until the tab is closed. */
export function recall(key, area = "localStorage") {
  try {
    return window[area].getItem(`regard.${key}`);
  } catch {
    return null;
  }
}

/** Stores a text if the browser permits it. */
export function remember(key, value, area = "localStorage") {
  try {
    window[area].setItem(`regard.${key}`, value);
  } catch {
    // The setting applies until the page is closed.
  }
}
