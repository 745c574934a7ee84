"""What tokens are made from: the files of a corpus, and the settings that decide about them."""

from __future__ import annotations

from pathlib import Path

from regard.data.text.readers import find_shards
from regard.training.fingerprints import Known
from regard.training.tasks.translation.recipe import DataSettings, TranslationRecipe


def list_files(data: DataSettings) -> dict[str, Path]:
    """Every file that the settings name, those in folders too."""
    found: dict[str, Path] = {}
    for key, path in data.paths().items():
        if path.is_dir():
            shards = [Path(shard.name) for shard in find_shards(path)]
            found |= {f"{key}/{shard.name}": shard for shard in shards}
        else:
            found[key] = path
    return found


def settings_of_data(recipe: TranslationRecipe) -> Known:
    """The settings that decide about tokens, as they come back from JSON."""
    data = recipe.data
    known = {f"tokenizer.{key}": value for key, value in recipe.tokenizer.model_dump(mode="json").items()}
    known |= {"data.builtin": data.builtin, "data.max_length": recipe.longest()}
    for number, corpus in enumerate(data.all_corpora()):
        known |= {f"data.corpora.{number}.{key}": list(getattr(corpus, key)) for key in ("keys", "columns")}
    if data.valid_source is None:
        known |= {"data.hold_out": data.hold_out, "training.seed": recipe.training.seed}
    return known
