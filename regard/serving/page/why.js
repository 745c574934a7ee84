// Section "why": what decided a word of the translation, and why it is not another one.

import { initialState, inputWatcher, integer, text } from "./address.js";
import { request } from "./api.js";
import { create, createButton, createField } from "./dom.js";
import { createAttribution, createHeads, createLens, createNextTokens, createPatching } from "./explanation.js";
import { getTranslation } from "./translations.js";

/** The position of the token, from 1 (the second by default, which has a prefix); the other word; the other sentence. */
const parameters = { token: integer(2, 1, 9999), not: text(), against: text() };
const state = initialState(parameters);
const watchInput = inputWatcher();

export const section = { id: "why", requires: ["why"], readsText: true, show, parameters, state };

async function show(container, page, signal) {
  const { strings, model } = page;
  if (model.kind === "nat") {
    container.append(create("p", { class: "card unavailable", text: strings.whyNAT }));
    return;
  }
  if (watchInput(page).isOtherInput) Object.assign(state, initialState(parameters));
  const { target, hypotheses } = await getTranslation(model.name, page.sentence, signal);
  if (signal.aborted) return;
  const { labels } = hypotheses[0];
  state.token = Math.max(1, Math.min(state.token, labels.length));
  const body = { model: model.name, text: page.sentence, target };
  const view = new WhyView(page, signal, body, labels);
  container.append(...view.cards);
  const lens = await request("inspect/lens", body, signal);
  if (signal.aborted) return;
  view.lens = lens;
  await view.draw();
}

class WhyView {
  constructor(page, signal, body, labels) {
    Object.assign(this, { page, signal, body, strings: page.strings, latest: 0 });
    const { strings } = this;
    this.tokens = labels.map((label, i) => create("button", {
      class: "token", text: label, on: { click: () => this.change({ token: i + 1, not: null }) },
    }));
    this.notField = create("input", { type: "text", maxlength: 200, placeholder: strings.whyNotHint, value: state.not ?? "" });
    this.againstField = create("input", { type: "text", maxlength: 10000, placeholder: strings.whyAgainstHint, value: state.against ?? "" });
    const form = create("form", { class: "bar controls", on: { submit: (event) => this.submit(event) } },
      createField(strings.whyNot, this.notField),
      createField(strings.whyAgainst, this.againstField),
      createButton(strings.whyAsk, () => {}, { type: "submit" }));
    this.attribution = create("div", { class: "explanation", "aria-live": "polite" });
    this.next = create("div");
    this.lensTable = create("div");
    this.encoderLens = create("div");
    this.heads = create("div");
    this.patching = create("div");
    const card = (title, hint, ...content) => create("section", { class: "card" },
      create("h2", { text: title }), create("p", { class: "hint", text: hint }), ...content);
    this.encoderCard = card(strings.encoderLensTitle, strings.encoderLensHint, this.encoderLens);
    this.cards = [
      card(strings.whyChoose, strings.whyChooseHint, create("p", { class: "tokens target" }, ...this.tokens), form, this.attribution),
      create("div", { class: "why-columns" },
        card(strings.nextTitle, strings.nextHint, this.next),
        card(strings.headsRanked, strings.headsRankedHint, this.heads)),
      card(strings.lensTitle, strings.lensHint, this.lensTable),
      card(strings.patchingTitle, strings.patchingHint, this.patching),
      this.encoderCard,
    ];
  }

  submit(event) {
    event.preventDefault();
    this.change({ not: this.notField.value.trim() || null, against: this.againstField.value.trim() || null });
  }

  change(values) {
    Object.assign(state, values);
    this.notField.value = state.not ?? "";
    this.page.saveView();
    this.draw().catch((error) => this.page.showError(error));
  }

  /** Show the lens at once, and the explanation of the chosen token when it has arrived. */
  async draw() {
    const { strings, lens } = this;
    const number = ++this.latest;
    this.tokens.forEach((token, i) => token.setAttribute("aria-pressed", String(i + 1 === state.token)));
    this.next.replaceChildren(createNextTokens(lens.decoder, state.token - 1));
    this.lensTable.replaceChildren(createLens(lens.decoder, strings, state.token - 1));
    this.encoderCard.hidden = !lens.encoder;
    if (lens.encoder) this.encoderLens.replaceChildren(createLens(lens.encoder, strings));
    const question = { word: String(state.token), contrast: state.not, against: state.against };
    let found;
    try {
      found = await request("inspect/why", { ...this.body, ...question }, this.signal);
    } catch (error) {
      if (number === this.latest) throw error;
      return;
    }
    if (number !== this.latest || this.signal.aborted) return;
    this.page.showError(null);
    this.attribution.replaceChildren(...createAttribution(found.attribution, strings));
    this.heads.replaceChildren(createHeads(found.heads, strings));
    if (found.patching) this.patching.replaceChildren(...createPatching(found.patching, strings));
    else this.patching.replaceChildren(create("p", { class: "hint", text: strings.whyNoAgainst }));
  }
}
