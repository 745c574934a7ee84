"""What a translator begins with in place of random weights: the model, tokenizer and languages of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.text.readers import read_lines
from regard.data.text.vocabularies import Vocabularies
from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.models.transformer import EncoderDecoderConfig
from regard.models.warmstart import ENCODER, copy_tensors, grow_vocabulary
from regard.pipelines.translator import Translator
from regard.training.task import Task
from regard.training.tasks.translation.recipe import FROM_TOKENIZER, TranslationRecipe, TranslatorInitSettings

OF_DECODER = ("decoder_layers", "tie")
"""Keys that decide nothing about an encoder."""


@dataclass(frozen=True)
class TranslatorStart:
    """A folder's weights and vocabularies, new words included, and the settings that follow from it."""

    folder: Path
    parts: str
    vocabularies: Vocabularies
    tensors: dict[str, Tensor]
    settings: TranslationRecipe

    @classmethod
    def open(cls, recipe: TranslationRecipe) -> TranslatorStart:
        """Reads the folder that the recipe begins with.

        Raises:
            UserError: it is no model folder, a new word cannot be added, or a setting of the recipe contradicts it.
        """
        folder = recipe.init.folder
        assert folder is not None
        with torch.random.fork_rng(devices=[]):  # so that a run that goes on without the folder draws the same numbers
            loaded = Translator.load(folder)
        old = loaded.vocabularies
        tokenizer = {"kind": old.source.kind, "size": len(old.source), "joint": old.joint}
        settled = settle(recipe, tokenizer, _keys_of(loaded.model.config.model_dump()), loaded.languages, str(folder))
        tokens = _new_tokens(recipe.init)
        try:
            new = old.with_tokens(tokens)
        except UserError as error:
            raise UserError(f"init.new_tokens: {error}") from None
        spelled = [[side.encode_continuation(token) for token in tokens] for side in (old.source, old.target)]
        model = grow_vocabulary(loaded.model, spelled[0], spelled[1], recipe.training.seed) if tokens else loaded.model
        return cls(folder, recipe.init.parts, new, unique_tensors(model), settled)

    def fill(self, task: Task[Any]) -> str:
        """Gives the task's model the folder's weights, or those of its encoder, and says so.

        Raises:
            UserError: a tensor does not fit; it is named.
        """
        copy_tensors(task.model, self.tensors, str(self.folder), ENCODER if self.parts == "encoder" else ("",))
        return f"beginning with the {'encoder' if self.parts == 'encoder' else 'weights'} of {self.folder}"


def settle(
    recipe: TranslationRecipe,
    tokenizer: Mapping[str, Any],
    model: Mapping[str, Any],
    languages: tuple[str, str],
    where: str,
) -> TranslationRecipe:
    """The recipe with all that follows from what the run begins with; what is given there must not contradict it.

    Args:
        recipe: what the user asked for.
        tokenizer: the settings of the tokenizer.
        model: every key of the model.
        languages: those of the model.
        where: whose they are, for errors.

    Raises:
        UserError: a setting contradicts them; it is named with both values.
    """
    for key in sorted(recipe.tokenizer.model_fields_set & tokenizer.keys()):
        given, own = getattr(recipe.tokenizer, key), tokenizer[key]
        if given < own if key == "size" else given != own:  # a vocabulary may be smaller than it was allowed to be
            raise UserError(_explain(f"tokenizer.{key}", given, own, where))
    kept = [code if code not in ("source", "target") else "" for code in languages]
    codes = [given or own for given, own in zip(recipe.data.languages, kept, strict=True)]
    taken = dict(model)
    if recipe.init.parts == "encoder":
        taken = {key: model[key] for key in EncoderDecoderConfig.model_fields.keys() & model if key not in OF_DECODER}
    elif (kind := recipe.kind) != model["kind"]:
        raise UserError(
            f"model.kind: {where} is of the kind {model['kind']}, not {kind}; set model.kind, or init.parts"
        )
    settled = recipe.changed(
        tokenizer=recipe.tokenizer.model_dump() | dict(tokenizer),
        model=({} if "preset" in recipe.model else taken) | recipe.model,
        data=recipe.data.model_dump() | {"languages": codes},
    )
    settled.check_model()
    wanted = _keys_of(settled.model_config_for(8, 8).model_dump())
    for key, own in taken.items():
        if wanted[key] != own and not key.endswith("dropout"):  # which decides nothing about the weights
            raise UserError(_explain(f"model.{key}", wanted[key], own, where))
    return settled.changed(model=wanted)


def settle_again(recipe: TranslationRecipe, old: TranslationRecipe, out: Path) -> TranslationRecipe:
    """`settle` for a run that goes on: its own recipe knows what followed from the folder, which may be gone."""
    if recipe.init.folder is None or old.init.folder is None:
        return recipe
    tokenizer = {key: getattr(old.tokenizer, key) for key in ("kind", "size", "joint")}
    return settle(recipe, tokenizer, old.model, old.data.languages, str(out))


def _new_tokens(settings: TranslatorInitSettings) -> list[str]:
    lines = [] if settings.new_tokens_file is None else read_lines(settings.new_tokens_file)
    return [*settings.new_tokens, *(line for line in lines if line.strip())]


def _keys_of(config: dict[str, Any]) -> dict[str, Any]:
    """The keys of a model that a recipe may name."""
    return {key: value for key, value in config.items() if key not in FROM_TOKENIZER}


def _explain(key: str, given: Any, own: Any, where: str) -> str:
    return f"{key}: {given} contradicts {own} of {where}, with which the run begins; leave it away"
