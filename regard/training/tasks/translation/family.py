"""How a recipe of a translator is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.pipelines.translator import Translator
from regard.training.building import build_model, describe_model
from regard.training.fingerprints import check_files, read_fingerprints
from regard.training.parallelism import initial_device
from regard.training.progress import Progress, counted
from regard.training.tasks.translation.data import LEFT_OUT, RunData, gather_data, open_data
from regard.training.tasks.translation.origins import list_files
from regard.training.tasks.translation.recipe import FROM_TOKENIZER, TEXTS, TranslationRecipe
from regard.training.tasks.translation.start import TranslatorStart, settle_again
from regard.training.tasks.translation.task import TranslationTask


@dataclass(frozen=True)
class Translation:
    """Parallel text, one recipe and one task for each way of writing the translation."""

    recipe: type[TranslationRecipe]
    task: type[TranslationTask]
    unit: str = "tokens"

    def open_start(self, recipe: TranslationRecipe) -> TranslatorStart:
        return TranslatorStart.open(recipe)

    def settle(self, recipe: TranslationRecipe, device: torch.device) -> TranslationRecipe:
        if recipe.batch.layout != "auto":
            return recipe
        # Settled once for all, since a position in the data means something else in the other.
        packed = recipe.training.fixed_sizes or (device.type == "cuda" and recipe.packs)
        return recipe.with_layout("packed" if packed else "padded")

    def settle_again(self, recipe: TranslationRecipe, old: TranslationRecipe, out: Path) -> TranslationRecipe:
        recipe = settle_again(recipe, old, out)
        return recipe.with_layout(old.batch.layout) if recipe.batch.layout == "auto" else recipe

    def flatten(self, recipe: TranslationRecipe) -> dict[str, Any]:
        """The model's settings with its preset filled in, a file's only as given or not."""
        values = recipe.model_dump(mode="json")
        model = recipe.model_config_for(8, 8).model_dump(mode="json")
        values["model"] = {key: value for key, value in model.items() if key not in FROM_TOKENIZER}
        for texts in (values["data"], *values["data"]["corpora"]):
            texts |= {key: "a file" for key in (*TEXTS, "store") if texts.get(key) is not None}
        values["init"] |= {key: "a path" for key in ("from", "new_tokens_file") if values["init"][key] is not None}
        values["data"]["languages"] = list(recipe.data.language_pair())
        return {f"{group}.{key}": value for group, part in values.items() for key, value in part.items()}

    def gather(
        self, folder: Path, recipe: TranslationRecipe, progress: Progress, start: TranslatorStart | None
    ) -> None:
        gather_data(folder, recipe, progress, None if start is None else start.vocabularies)

    def check(self, folder: Path, recipe: TranslationRecipe, owner: str) -> None:
        check_files(list_files(recipe.data), read_fingerprints(folder)["files"], owner)

    def open(self, folder: Path, recipe: TranslationRecipe, progress: Progress) -> RunData:
        return open_data(folder, recipe, progress)

    def prepare(
        self, recipe: TranslationRecipe, device: torch.device, progress: Progress, data: RunData
    ) -> TranslationTask:
        vocabularies = data.vocabularies
        config = recipe.model_config_for(len(vocabularies.source), len(vocabularies.target))
        model = build_model(config, initial_device(device, recipe.training.sharding))
        source, target = recipe.data.language_pair()
        progress.print(
            f"{source} → {target}: {counted(len(data.train), 'training pair')}, {len(data.valid):,} for validation; "
            f"{len(vocabularies.source):,} pieces"
            + ("" if vocabularies.joint else f" and {len(vocabularies.target):,}")
        )
        for why, number in data.left_out.items():
            progress.print(f"left out: {counted(number, 'pair')} with {why}; see {data.folder / LEFT_OUT}")
        progress.print(describe_model(model, device))
        translator = Translator(model, vocabularies, (source, target))
        task = self.task(translator, data.train, data.valid, recipe, device)
        if note := task.note():
            progress.print(note)
        return task

    def suggest(self, out: Path) -> str:
        return f"regard translate {out} < FILE"
