"""Looking at a model at work: what it is given becomes a scene to be drawn. One file for each kind of input."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from regard.decoding.settings import AnySettings
from regard.inspection.scene import Scene
from regard.models.folder import expect_reader, find_model


def look_at(
    run: Path,
    given: str,
    names: Collection[str] | None = None,
    settings: AnySettings | None = None,
    device: str = "auto",
) -> Scene:
    """Gives a run's model something to work on, and shows what its attentions looked at.

    Args:
        run: a model folder, or a training run that holds one.
        given: what it works on: a sentence for a translator.
        names: which attentions, such as "decoder.3.cross"; all unless given.
        settings: how a translator searches.
        device: where it works.

    Raises:
        UserError: there is no model, or none that reads text, or it cannot work on what is given.
    """
    from regard.decoding.translator import Translator
    from regard.devices import choose_device
    from regard.looking.translation import look_at_translation

    folder = find_model(run)
    expect_reader(folder, "text")
    translator = Translator.load(folder, device=choose_device(device))
    about = f"{run} · {' → '.join(translator.languages)}"
    return look_at_translation(translator, given, names, settings, about)
