// Light and dark theme: that of the system until the user changes it; the choice is kept.

import { recall, remember } from "./storage.js";

const query = window.matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const selected = document.documentElement.dataset.theme;
  return selected ? selected === "dark" : query.matches;
}

/** Toggles the theme when the button is pressed. Calls `onChange` then, and when the system's theme changes. */
export function watchTheme(button, onChange) {
  const stored = recall("theme");
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    remember("theme", document.documentElement.dataset.theme);
    onChange();
  });
  query.addEventListener("change", onChange);
}
