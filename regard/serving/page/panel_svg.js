// A panel of the page as SVG: boxes and texts become shapes, so that the picture can be edited; canvases become images.

import { SVG, createSvg } from "./dom.js";

const BASELINE = 0.79; // of the height of a line of text
const SHAPE_STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family", "text-anchor"];

/** Return an element as SVG text, without controls. Scrolled contents are shown in full. */
export function panelToSvg(panel) {
  panel.classList.add("exporting");
  try {
    const box = panel.getBoundingClientRect();
    const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)];
    const svg = createSvg("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
    svg.append(createSvg("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
    drawElement(svg, panel, box);
    return new XMLSerializer().serializeToString(svg);
  } finally {
    panel.classList.remove("exporting");
  }
}

/** Return SVG text as a PNG blob, twice as large. */
export async function svgToPng(text) {
  const image = new Image();
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    const scale = Math.min(2, 8000 / Math.max(image.width, image.height));
    Object.assign(canvas, { width: image.width * scale, height: image.height * scale });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

function drawElement(svg, element, origin) {
  if (!element.checkVisibility({ visibilityProperty: true }) || element.matches(".stepper, .controls, .tool")) return;
  const style = getComputedStyle(element);
  const box = relativeBox(element.getBoundingClientRect(), origin);
  drawBox(svg, style, box);
  if (element.tagName === "CANVAS") {
    svg.append(createSvg("image", { ...box, href: element.toDataURL(), preserveAspectRatio: "none" }));
  } else if (element.tagName === "METER") drawMeter(svg, element, style, box);
  else if (element.tagName === "svg") drawPicture(svg, element, box);
  else if (element.matches("input, select, textarea")) drawText(svg, element.selectedOptions?.[0]?.text ?? element.value, style, box);
  else for (const child of element.childNodes) {
    if (child.nodeType === Node.ELEMENT_NODE) drawElement(svg, child, origin);
    else if (child.nodeType === Node.TEXT_NODE) drawTextNode(svg, child, style, origin);
  }
}

function relativeBox({ left, top, width, height }, origin) {
  return { x: round(left - origin.left), y: round(top - origin.top), width: round(width), height: round(height) };
}

const round = (value) => Math.round(value * 10) / 10;
const isVisibleColour = (colour) => colour !== "transparent" && !/, 0\)$|\/ 0\)$/.test(colour);

function drawBox(svg, style, box) {
  const hasFill = isVisibleColour(style.backgroundColor);
  const hasLine = parseFloat(style.borderTopWidth) > 0 && isVisibleColour(style.borderTopColor);
  if (!hasFill && !hasLine) return;
  svg.append(createSvg("rect", {
    ...box, rx: Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2),
    fill: hasFill ? style.backgroundColor : "none", stroke: hasLine ? style.borderTopColor : "none",
  }));
}

function drawMeter(svg, meter, style, { x, y, width, height }) {
  const root = getComputedStyle(document.documentElement);
  const share = (meter.value - meter.min) / (meter.max - meter.min || 1);
  svg.append(createSvg("rect", { x, y, width, height, rx: height / 2, fill: root.getPropertyValue("--line").trim() }));
  svg.append(createSvg("rect", { x, y, width: round(width * share), height, rx: height / 2, fill: root.getPropertyValue("--selected").trim() }));
}

/** Copy a picture with the styles that its shapes have on the page. */
function drawPicture(svg, picture, box) {
  const copy = picture.cloneNode(true);
  const originals = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(originals[i]);
    if (style.visibility === "hidden") part.setAttribute("visibility", "hidden");
    for (const name of SHAPE_STYLES) part.setAttribute(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries(box)) copy.setAttribute(name, value);
  svg.append(copy);
}

/** Draw a text node line by line. */
function drawTextNode(svg, node, style, origin) {
  if (!node.data.trim()) return;
  const range = document.createRange();
  const lines = [];
  for (const { index, 0: word } of node.data.matchAll(/[\u3000-\u9fff\uff00-\uffef]|[^\s\u3000-\u9fff\uff00-\uffef]+|\s+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const [rectangle] = range.getClientRects();
    if (!rectangle) continue;
    const last = lines.at(-1);
    if (last && Math.abs(last.rectangle.top - rectangle.top) < 2) last.text += word;
    else if (word.trim()) lines.push({ text: word, rectangle });
  }
  for (const { text, rectangle } of lines) drawText(svg, text, style, relativeBox(rectangle, origin), 0);
}

function drawText(svg, text, style, { x, y, height }, indent = 6) {
  const element = createSvg("text", {
    x: x + indent, y: round(y + height * BASELINE), fill: style.color, "font-size": style.fontSize, "font-family": style.fontFamily,
    "font-weight": style.fontWeight, "xml:space": "preserve",
  });
  if (parseFloat(style.opacity) < 1) element.setAttribute("opacity", style.opacity);
  element.textContent = text;
  svg.append(element);
}
