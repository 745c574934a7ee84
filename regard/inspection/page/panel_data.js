// Numbers of pictures, for downloads as CSV.

const tables = new WeakMap();

/** State the numbers of an element, such as a canvas: `getRows()` returns a list of rows. Returns the element. */
export function setData(element, getRows) {
  tables.set(element, getRows);
  return element;
}

/** Return rows for a map with labels. */
export function mapRows({ rows, columns, values }, rowLabels, columnLabels) {
  const row = (i) => Array.from(values.subarray(i * columns, (i + 1) * columns));
  const numbers = Array.from({ length: rows }, (_, i) => [rowLabels?.[i] ?? i, ...row(i)]);
  return [["", ...(columnLabels ?? Array.from({ length: columns }, (_, i) => i))], ...numbers];
}

/** Return the contents of a panel as CSV: its headings, texts, tables and the numbers of its pictures. */
export function panelToCsv(panel) {
  const lines = [];
  const visit = (element) => {
    if (element.matches("button, select, input, textarea, output, [hidden], .stepper, .controls, .tool") && !tables.has(element)) return;
    if (tables.has(element)) {
      if (element.matches("button")) lines.push([element.querySelector("strong")?.textContent ?? element.ariaLabel ?? ""]);
      lines.push(...tables.get(element)());
    } else if (element.tagName === "TABLE") {
      lines.push(...[...element.rows].map((row) => [...row.cells].filter((cell) => !cell.hidden).map(cellText)));
      for (const picture of element.querySelectorAll("canvas")) if (tables.has(picture)) lines.push(...tables.get(picture)());
    } else if (!element.children.length || element.matches("p, h2, h3, h4, .class")) {
      const cells = element.matches(".tokens, .class") ? [...element.children] : [element];
      const texts = cells.map((cell) => cell.textContent.trim());
      if (texts.some(Boolean)) lines.push(texts);
    } else for (const child of element.children) visit(child);
  };
  visit(panel);
  return lines.map((line) => line.map(escapeCell).join(",")).join("\r\n") + "\r\n";
}

const cellText = (cell) => (cell.querySelector("span") ?? cell).textContent.trim();

/** Quote a cell; a leading apostrophe keeps spreadsheets from computing texts that look like formulas. */
function escapeCell(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  const text = /^[=+@\t\r]|^-(?!\d)/.test(value) ? `'${value}` : String(value).replace(/^−(?=\d)/, "-");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
