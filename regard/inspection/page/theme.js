// Light and dark theme: that of the system until the user changes it.

const query = window.matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const selected = document.documentElement.dataset.theme;
  return selected ? selected === "dark" : query.matches;
}

/** Toggles the theme when the button is pressed. Calls `onChange` then, and when the system's theme changes. */
export function watchTheme(button, onChange) {
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    onChange();
  });
  query.addEventListener("change", onChange);
}
