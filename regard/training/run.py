"""A recipe, carried out: data, tokenizer, model, loop, model folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch

from regard.decoding.translator import Translator
from regard.devices import choose_device
from regard.errors import UserError
from regard.interruption import Interruptions
from regard.models.folder import mend_replaced, replacing
from regard.models.transformer import Transformer, TransformerConfig
from regard.training.checkpoint import last_name, load_checkpoint, reporting_write_errors
from regard.training.data import LEFT_OUT, RunData, gather_data, open_data
from regard.training.fingerprints import check_files, read_fingerprints
from regard.training.journal import CHECKPOINTS, require_tensorboard
from regard.training.loop import Outcome, train
from regard.training.memory import explain_too_large, is_out_of_memory
from regard.training.progress import Progress, counted
from regard.training.recipe import Recipe
from regard.training.resume import (
    DATA,
    RECIPE,
    check_settings,
    exclusive,
    is_run,
    is_unused,
    tidy,
    write_recipe,
)
from regard.training.translation import TranslationTask


def run_recipe(recipe: Recipe, out: Path) -> Outcome:
    """Trains what the recipe says into the folder `out`; goes on where a run of the same recipe has begun there.

    Raises:
        UserError: the data or a setting is wrong, or the folder holds something else; a run that did not get to its
            first checkpoint or model leaves nothing behind.
    """
    if not is_run(out) and not is_unused(out):
        raise UserError(f"{out}: already exists and is not an empty folder; choose another --out, or remove it first")
    if recipe.training.tensorboard:
        require_tensorboard()
    progress = Progress(recipe.training.steps)
    device = choose_device(recipe.training.device)
    torch.manual_seed(recipe.training.seed)
    made = _make_folder(out)
    with exclusive(out), Interruptions() as stop:
        if is_run(out):
            return _resume(recipe, out, device, progress, stop)
        try:
            return _begin(recipe, out, device, progress, stop)
        except BaseException:
            if not (out / "last").exists() and not last_name(out / CHECKPOINTS):
                _clear(out, made)
            raise


def _begin(recipe: Recipe, out: Path, device: torch.device, progress: Progress, stop: Interruptions) -> Outcome:
    """Trains from the first step on."""
    if recipe.batch.layout == "auto":  # settled now, since a position in the data means something else in the other
        layout = "packed" if device.type == "cuda" else "padded"
        recipe = _with_layout(recipe, layout)
    with reporting_write_errors(out, out / CHECKPOINTS):
        mend_replaced(out / DATA)
        with replacing(out / DATA) as folder:
            gather_data(folder, recipe, progress)
    task = prepare(recipe, device, progress, open_data(out / DATA, recipe, progress))
    with reporting_write_errors(out, out / CHECKPOINTS):
        write_recipe(out, recipe)  # with which the folder becomes a run
    with progress:
        return train(task, recipe.optim, recipe.training, out, progress, None, stop)


def _resume(recipe: Recipe, out: Path, device: torch.device, progress: Progress, stop: Interruptions) -> Outcome:
    """Goes on from the last good checkpoint, or from the beginning where the run has none yet."""
    old = Recipe.load(out / RECIPE)
    if recipe.batch.layout == "auto":
        recipe = _with_layout(recipe, old.batch.layout)
    checkpoint = load_checkpoint(out / CHECKPOINTS, progress.say)
    step = checkpoint.step if checkpoint else 0
    check_settings(old, recipe, step, out)
    if checkpoint and recipe.training.is_over(step, checkpoint.facts["stale"]):
        facts, early = checkpoint.facts, step < recipe.training.steps
        bound = recipe.optim.schedule == "cosine" or recipe.training.average > 0  # to the number of steps it began with
        more = "a higher training.patience makes" if early else "" if bound else "more training.steps make"
        progress.say(f"{out}: this run is already done, at step {step}" + (f"; {more} it go on" if more else ""))
        return Outcome(step, facts["seconds"], facts["best_step"], facts["best_scores"], early)
    check_files(recipe.data, read_fingerprints(out / DATA)["files"], f"the run in {out}")
    with reporting_write_errors(out, out / CHECKPOINTS):
        data = open_data(out / DATA, recipe, progress)
    task = prepare(recipe, device, progress, data)
    with reporting_write_errors(out, out / CHECKPOINTS):
        write_recipe(out, recipe)
        tidy(out, step)
    progress.resume(step)
    with progress:
        return train(task, recipe.optim, recipe.training, out, progress, checkpoint, stop)


def _with_layout(recipe: Recipe, layout: str) -> Recipe:
    return recipe.changed(batch=recipe.batch.model_dump() | {"layout": layout})


def prepare(recipe: Recipe, device: torch.device, progress: Progress, data: RunData | None = None) -> TranslationTask:
    """Everything that a run needs before its first step; data that is not given is made, and gone with the task."""
    if data is None:
        with tempfile.TemporaryDirectory() as name:  # what is mapped outlives its name
            gather_data(Path(name), recipe, progress)
            data = open_data(Path(name), recipe, progress)
    vocabularies = data.vocabularies
    config = recipe.model_config_for(len(vocabularies.source), len(vocabularies.target))
    model = build_model(config, device)
    source, target = recipe.data.language_pair()
    progress.say(
        f"{source} → {target}: {counted(len(data.train), 'training pair')}, {len(data.valid):,} for validation; "
        f"{len(vocabularies.source):,} pieces" + ("" if vocabularies.joint else f" and {len(vocabularies.target):,}")
    )
    for why, number in data.left_out.items():
        progress.say(f"left out: {counted(number, 'pair')} with {why}; see {data.folder / LEFT_OUT}")
    parameters = sum(p.numel() for p in model.parameters())
    progress.say(f"{parameters / 1e6:.1f} M parameters on {_describe(device)}")
    translator = Translator(model, vocabularies, (source, target))
    return TranslationTask(translator, data.train, data.valid, recipe, device)


def build_model(config: TransformerConfig, device: torch.device) -> Transformer:
    """A new model with weights drawn at random.

    Raises:
        UserError: it does not fit into memory.
    """
    try:
        return Transformer(config).to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    with torch.device("meta"):  # shapes without memory
        outline = Transformer(config)
    raise explain_too_large(outline, 4)


def _make_folder(out: Path) -> list[Path]:
    """Makes the folder and tells which folders were made for it, the innermost first."""
    made: list[Path] = []
    for path in (out, *out.parents):
        if path.exists():
            break
        made.append(path)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(f"{out} is read-only")
    except OSError as error:
        raise UserError(f"{out}: cannot be written to ({error})") from None
    return made


def _clear(out: Path, made: list[Path]) -> None:
    """Takes away what the run wrote, and the folders made for it as far as nobody else has put anything there."""
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in made:
        try:
            path.rmdir()
        except OSError:
            return


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return counted(torch.get_num_threads(), "CPU thread")
