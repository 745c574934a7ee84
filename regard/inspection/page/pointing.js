// Pointing at a drawing with a mouse, by touch or with the arrow keys. A click, tap or key pins the point.

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The point of one or more drawings of the same map. Calls `onPoint` with {row, column}, one of them, or null. */
export class Pointing {
  constructor(onPoint) {
    this.onPoint = onPoint;
    this.pinned = null;
  }

  /**
   * Listen to a canvas. `drawing.locate(event)` returns the point under the pointer, `drawing.move(point, x, y)` the next
   * point in a direction, or the first one without a point, and `drawing.boxOf(point)` its left, top, width and height.
   */
  listen(canvas, drawing) {
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    const hover = (event) => event.pointerType !== "touch" && this.onPoint(drawing.locate(event) ?? this.pinned);
    canvas.addEventListener("pointermove", hover);
    canvas.addEventListener("pointerleave", () => this.onPoint(this.pinned));
    canvas.addEventListener("click", (event) => {
      const point = drawing.locate(event);
      this.pin(isSame(point, this.pinned) ? null : point);
    });
    canvas.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (event.key === "Escape") this.pin(null);
      if (!step || !drawing.map) return;
      event.preventDefault();
      this.pin(drawing.move(this.pinned, ...step));
      scrollTo(canvas.parentElement, drawing.boxOf(this.pinned));
    });
  }

  pin(point) {
    this.pinned = point;
    this.onPoint(point);
  }
}

/** Return an index moved by a step within a range; without an index, the first one. */
export function moveIndex(index, step, count) {
  return index === undefined ? 0 : Math.min(count - 1, Math.max(0, index + step));
}

function isSame(one, other) {
  return one?.row === other?.row && one?.column === other?.column;
}

function scrollTo(container, [left, top, width, height]) {
  if (left < container.scrollLeft) container.scrollLeft = left;
  if (top < container.scrollTop) container.scrollTop = top;
  container.scrollLeft = Math.max(container.scrollLeft, left + width - container.clientWidth);
  container.scrollTop = Math.max(container.scrollTop, top + height - container.clientHeight);
}
