// The sections of the page, in the order of their tabs.
//
// A section is {id, requires, readsText, show, parameters, state}:
// - `requires`: the model must support one of these sections (`sections` of the model);
// - `readsText`: the section shows the text field;
// - `show(container, page, signal)` fills the container, and stops when the signal is aborted;
// - `parameters` (optional) are the parts of `state` that belong to the address, by key; see address.js. A section changes
//   its state, calls `page.saveView()` and draws. `show` is called again when the user goes back.
// A title of each section is in `sections` of page_strings.js. To add one, write a module and add it to SECTIONS.

import { section as arithmetic } from "./arithmetic.js";
import { section as attention } from "./attention.js";
import { section as beam } from "./beam.js";
import { section as change } from "./change.js";
import { section as image } from "./image.js";
import { showImageArithmetic, showImageAttention } from "./image_attention.js";
import { showImageChange } from "./image_change.js";
import { section as overview } from "./overview.js";
import { section as positions } from "./positions.js";
import { section as training } from "./training.js";
import { section as translate } from "./translate.js";
import { section as why } from "./why.js";

export const SECTIONS = [
  overview, translate,
  withImages(attention, "image_attention", showImageAttention),
  why,
  withImages(arithmetic, "image_arithmetic", showImageArithmetic),
  beam,
  withImages(change, "image_change", showImageChange),
  positions, image, training,
];

/** Sections that are opened first, if the model supports them. */
export const FIRST_SECTIONS = [translate, image];

/** Return a section that shows text models as before, and those that support `name` with `showImage`. */
function withImages(section, name, showImage) {
  const show = (container, page, signal) =>
    (page.model.sections.includes(name) ? showImage : section.show)(container, page, signal);
  return { ...section, requires: [...section.requires, name], show };
}
