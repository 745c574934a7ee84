// The sentences of the text, of which the sections show one, or the whole text as one sequence.

import { create } from "./dom.js";
import { getSentences } from "./translations.js";

/** Index that stands for the whole text as one sequence. */
export const WHOLE = -1;

export class SentenceChooser {
  /** `onChoose()` is called when the user has chosen another sentence. */
  constructor(element, onChoose) {
    Object.assign(this, { element, onChoose, text: null, index: 0 });
  }

  /** Choose a sentence of a text by its index, or WHOLE. */
  choose(text, index) {
    Object.assign(this, { text, index });
  }

  /** Return the index of the chosen sentence of a text; the first one if the text is new. */
  indexIn(text) {
    return text === this.text ? this.index : 0;
  }

  /** Return the chosen sentence. Show the sentences if there are several, and warnings about long ones and other languages. */
  async show(page, signal) {
    const { text, strings } = page;
    const { sentences, longest, source_language_warning: expected } = await getSentences(page.model.name, text, signal);
    if (signal.aborted) return page.sentence;
    const index = page.limit(strings.sentenceField, this.indexIn(text), sentences.length);
    this.choose(text, Math.max(WHOLE, index));
    const isUnusual = ({ tokens }) => longest !== null && tokens > longest;
    const long = sentences.filter((sentence) => isUnusual(sentence) || sentence.divided);
    this.element.replaceChildren();
    if (sentences.length > 1) {
      const labels = sentences.map((one, i) => `${i + 1}${long.includes(one) ? " ⚠" : ""}  ${one.text}`);
      this.element.append(
        ...labels.map((label, i) => this.createButton(label, i)), this.createButton(strings.oneSequence, WHOLE));
    }
    if (long.length) {
      const limit = long.some(isUnusual) ? longest : null;
      this.element.append(create("p", { class: "warning", text: strings.longSentences(long.length, limit) }));
    }
    if (expected) {
      const name = new Intl.DisplayNames([page.language], { type: "language" }).of(expected);
      this.element.append(create("p", { class: "warning language", text: strings.otherLanguage(name) }));
    }
    this.element.hidden = !this.element.children.length;
    return sentences[this.index]?.text ?? text.trim();
  }

  createButton(label, index) {
    const choose = () => {
      this.index = index;
      this.onChoose();
    };
    return create("button", { class: "choice", text: label, "aria-pressed": String(index === this.index), on: { click: choose } });
  }
}
