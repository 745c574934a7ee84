"""`look`: translate a sentence in a notebook and display the attention, and the explanation of a word."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard.errors import UserError
from regard.inspection.attention_scene import Scene
from regard.inspection.interventions import bias_scores
from regard.inspection.translation import translation_scene


def look(
    translator: Any,
    sentence: str,
    *,
    why: str | int | None = None,
    contrast: str | None = None,
    against: str | None = None,
    names: Collection[str] | None = None,
    bias: Mapping[int, float] | None = None,
    **settings: Any,
) -> Scene:
    """Translate a sentence and return its attention as a scene, which a notebook displays as an interactive page.

    The page holds everything it needs, so it works offline, in Jupyter and in VS Code, and in a notebook converted to
    HTML. `scene.translation` is the translation, and `scene.save` writes it to a file.

    Examples:
        ```python
        translator = regard.Translator.load("runs/demo")
        regard.look(translator, "I love apples", why="喜欢", contrast="爱")
        ```

    Args:
        translator: A `Translator`; of an ensemble, the first model is shown.
        sentence: A sentence; it is not split.
        why: Word of the translation to explain, its position counted from 1, END, or "all".
        contrast: With `why`: the word that it is compared with.
        against: With `why`: another sentence with as many tokens, for activation patching.
        names: Attention modules, such as "decoder.1.cross". Defaults to all.
        bias: Number to add to the cross-attention scores of source tokens, by position from 0.
        settings: Search settings, such as beam=4.

    Raises:
        UserError: The sentence is blank, a word does not occur in the translation, or a setting is invalid.
    """
    if not hasattr(translator, "hypotheses"):
        raise UserError(f"look takes a Translator, not a {type(translator).__name__}")
    if why is None and (contrast, against) != (None, None):
        raise UserError("contrast and against belong to a word of the translation; name it with why=WORD")
    parsed = translator.generator.settings_class.parse(settings, "look")
    with bias_scores(translator.model, bias or {}):
        about = " → ".join(translator.languages)
        scene = translation_scene(translator, sentence, names, parsed, about)
        if why is None:
            return scene
        from regard.inspection.explain.explanation import explain_words

        found = explain_words(translator, sentence, str(why), contrast, against, settings=parsed)
    return replace(scene, explanations=found)
