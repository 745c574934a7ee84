"""From nothing to a translator and a picture of its attention, on the built-in corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.data.builtin.corpus import load_examples
from regard.evaluation import bleu, exact_match
from regard.inspection.drawing import draw_heads
from regard.inspection.probe import probe
from regard.models.nat import NATransformer
from regard.pipelines.translator import Translator
from regard.training.recipe import Recipe
from regard.training.run import run_recipe

SHOWN = ("I love apples", "I am human", "Yesterday my older brother bought three books at the market.")


def run_demo(out: Path, changes: Sequence[str]) -> None:
    """Trains the demo's recipe, scores it on held-out sentences, shows some, draws one."""
    print("Training a small Transformer on the built-in English-Chinese corpus.")
    outcome = run_recipe(Recipe.load(Path("demo"), changes), out)
    print(f"Trained in {outcome.seconds:.0f} s.\n")
    translator = Translator.load(out)
    score_held_out(translator)
    print()
    for sentence in SHOWN:
        print(f"  {sentence}  →  {translator(sentence)}")
    picture = out / "attention.svg"
    picture.write_text(draw_cross_attention(translator, SHOWN[-1]), encoding="utf-8")
    print(f"\nThe model is in {out}/best; what it looked at is drawn in {picture}.\nNext, try:")
    print(f'  regard translate {out} "Where did you buy that book?"')
    print(f'  regard look {out} "I love apples" --out look.html')
    print(f'  regard translate {out} "Is your younger sister taller than Mary?" --beam 1')
    print("  regard train --src train.en --tgt train.de --out runs/en-de")


def score_held_out(translator: Translator) -> None:
    """Prints BLEU and exact matches on the test set, and on its sentences with combinations never seen in training."""
    test = load_examples("test")
    sources, references = [d.pair.source for d in test], [d.pair.target for d in test]
    translations = translator(sources, beam=1)
    novel = [i for i, d in enumerate(test) if d.novel]
    print(f"{len(test)} held-out sentences, {'one pass or few' if is_parallel(translator) else 'greedy search'}:")
    print(f"  {bleu(translations, references, 'zh')}")
    print(f"  {exact_match(translations, references):.1f}% exact matches; ", end="")
    share = exact_match([translations[i] for i in novel], [references[i] for i in novel])
    print(f"{share:.1f}% on the {len(novel)} with combinations of words that training never showed")


def draw_cross_attention(translator: Translator, sentence: str) -> str:
    """The heads of the last layer's cross-attention, as SVG: which source tokens each target token was made from."""
    name = f"decoder.{translator.model.config.decoder_layers - 1}.cross"
    with probe(translator.model, [name]) as seen:
        best = translator.hypotheses([sentence], snapshots=is_parallel(translator))[0][0]
    source = translator.vocabularies.source
    labels = [*source.tokens(source.encode(sentence)), "END"]
    weights = seen[name].weights[0].numpy()
    rows = best.rounds[-1].pieces if best.rounds else best.labels  # a canvas may have more places than tokens
    return draw_heads(weights, labels, rows, f"{sentence} → {best.text}")


def is_parallel(translator: Translator) -> bool:
    """Whether the model writes all tokens at once."""
    return isinstance(translator.model, NATransformer)
