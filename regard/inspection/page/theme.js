// Light or dark: as the system has it, until somebody chooses.

const query = window.matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : query.matches;
}

/** Changes the theme when the button is pressed; `onChange()` also when the system's changes. */
export function watchTheme(button, onChange) {
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    onChange();
  });
  query.addEventListener("change", onChange);
}
