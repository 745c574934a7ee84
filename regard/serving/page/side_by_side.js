// A section for two models side by side. Both show the same sentence, head, step and settings.

import { create } from "./dom.js";

/**
 * Fill a container with two columns. `pages` are the page of each model; `reasonOf(model)` says why a model does not support
 * the section, if it does not. A change in one column is repeated in the other.
 */
export async function showSideBySide(container, pages, section, reasonOf, signal) {
  const columns = pages.map((page) => new Column(page, section, reasonOf));
  container.append(create("div", { class: "columns" }, ...columns.map(({ element }) => element)));
  signal.addEventListener("abort", () => columns.forEach((column) => column.requests.abort()));
  for (const column of columns) {
    column.onChange = async () => {
      const [other] = columns.filter((one) => one !== column);
      columns.forEach((one) => (one.isDrawing = true)); // drawing may adjust the state, which is not a change by the user
      await other.draw();
      columns.forEach((one) => (one.isDrawing = false));
    };
  }
  for (const column of columns) await column.draw(); // one after the other, because sections share their state
  columns.forEach((column) => (column.isDrawing = false));
}

class Column {
  constructor(page, section, reasonOf) {
    Object.assign(this, { section, reasonOf, isDrawing: true, requests: new AbortController() });
    this.content = create("div", { class: `section section-${section.id}` });
    this.element = create("section", { class: "column" }, create("h2", { class: "column-title", text: page.model.name }), this.content);
    this.page = Object.create(page, {
      saveView: {
        value: (options) => {
          page.saveView(options);
          if (!this.isDrawing) this.onChange().catch((error) => page.showError(error));
        },
      },
    });
  }

  async draw() {
    this.requests.abort();
    this.requests = new AbortController();
    const { signal } = this.requests;
    this.content.replaceChildren();
    const reason = this.reasonOf(this.page.model);
    if (reason) this.content.append(create("p", { class: "card unavailable", text: reason }));
    else {
      try {
        await this.section.show(this.content, this.page, signal);
      } catch (error) {
        if (!signal.aborted) this.content.append(create("p", { class: "card error", text: error.message }));
      }
    }
  }
}
