"""`regard bench --training`: real training steps of a run's recipe, in several variants and in transformers."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from regard.data.text.readers import read_jsonl
from regard.errors import UserError, prefix_errors
from regard.evaluation.benchmark.harness import format_table
from regard.interop.huggingface_translation import build_huggingface
from regard.interop.huggingface_vision import build_huggingface_classifier
from regard.ops.linear import supports
from regard.pipelines.classifier import Classifier
from regard.training.objectives.registry import Objective
from regard.training.objectives.teacher_forcing import cross_entropy
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run_folder import DATA, RECIPE, is_run
from regard.training.step_timing import StepTiming, time_steps
from regard.training.task import LossSum, Step, Task
from regard.training.tasks.classification.batches import ImageBatch
from regard.training.tasks.classification.task import ClassificationTask
from regard.training.tasks.registry import load_recipe, task_of
from regard.training.tasks.translation.data import VALID, take_evenly
from regard.training.tasks.translation.recipe import TranslationRecipe
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import TextBatch

MEASURED = "of complete steps: batch, loss, gradients, optimizer"
MAX_ERROR_LENGTH = 300
Changes = tuple[str, ...]
"""Settings to override, each written key=value."""


def find_run(path: Path) -> Path | None:
    """Return the run at `path`, or the run of the model folder at `path`; None if there is no run."""
    for folder in (path, path.parent) if path.name in ("best", "last") else (path,):
        if is_run(folder):
            return folder
    return None


def open_run(path: Path, changes: Sequence[str] = ()) -> tuple[Path, Recipe]:
    """Return the folder of a run and its recipe with changed settings, each written KEY=VALUE."""
    folder = find_run(path)
    if folder is None:
        problem = "no such run" if not path.exists() else f"not a run ({RECIPE} and its data are missing)"
        raise UserError(f"{path}: {problem}; training steps are defined by a recipe, so give the folder of a run")
    return folder, load_recipe(folder / RECIPE, changes)


def validation_sentences(path: Path, most: int) -> list[str]:
    """Return at most `most` source sentences of a run's validation set, evenly spaced; none if it has no such set."""
    if find_run(path) is None:
        return []
    folder, recipe = open_run(path)
    if not isinstance(recipe, TranslationRecipe):
        return []
    file = (recipe.data.store or folder / DATA) / VALID
    if not file.is_file():
        return []
    sentences = [pair.source for pair in read_jsonl(file) if pair.source.strip()]
    return list(take_evenly(sentences, len(sentences), most))


@dataclass(frozen=True)
class Variant:
    """A run with changed settings, or with the model of another library."""

    run: str  # path, as given by the user
    changes: Changes = ()
    library: str = ""  # whose model replaces ours
    compiled: bool = False  # whether that model is compiled

    @property
    def name(self) -> str:
        if self.library:
            return "transformers, compiled" if self.compiled else "transformers"
        return " ".join(self.changes) or "the recipe"

    def prepare(self, device: torch.device) -> tuple[Task[Any], Any]:
        """Return the task, with a new model, and the recipe."""
        folder, recipe = open_run(Path(self.run), self.changes)
        torch.manual_seed(recipe.training.seed)
        task = task_of(recipe).open(folder / DATA, recipe, device, Progress(1, Console(quiet=True)))
        if self.library:
            use_transformers_model(task)
            if self.compiled:
                task.model.compile(dynamic=True)
        return task, recipe


@dataclass(frozen=True)
class Row:
    """The timing of a variant, or why it failed."""

    variant: Variant
    timing: StepTiming | None
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        result = {"error": self.error} if self.timing is None else self.timing.as_dict()
        return {"run": self.variant.run, "name": self.variant.name, "changes": list(self.variant.changes)} | result


@dataclass(frozen=True)
class TrainingReport:
    """The timings of all variants."""

    rows: list[Row]
    seconds: float

    def lines(self) -> list[str]:
        on_gpu = any(row.timing and row.timing.peak for row in self.rows)
        memory = "; peak: all allocated memory; KB each: memory of a batch without weights and optimizer state"
        caption = f"medians {MEASURED}, with new weights and the data of the run; in parentheses relative to the recipe"
        return [tabulate(self.rows), *list_notes(self.rows), "", caption + (memory if on_gpu else "")]

    def as_dict(self) -> dict[str, Any]:
        return {"measured": MEASURED, "seconds": self.seconds, "training": [row.as_dict() for row in self.rows]}


def time_training(
    runs: Sequence[str],
    device: torch.device,
    seconds: float,
    libraries: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda text: None,
) -> TrainingReport:
    """Time training steps of runs in several variants, one after another."""
    variants = [variant for run in runs for variant in _variants(run, device, libraries)]
    for variant in variants:
        if variant.library and not variant.compiled:  # report unsupported models before minutes of timing
            with prefix_errors(f"--library {variant.library}"):
                variant.prepare(torch.device("cpu"))
    rows = []
    for variant in variants:
        on_progress(f"{variant.run}, {variant.name}")
        rows.append(_time(variant, device, seconds))
    return TrainingReport(rows, seconds)


def _variants(run: str, device: torch.device, libraries: Sequence[str]) -> Iterator[Variant]:
    """Yield the variants of a run: changes of its recipe, and the same model in other libraries."""
    recipe = open_run(Path(run))[1]
    yield from (Variant(run, changes) for changes in list_changes(recipe, device))
    for library in libraries:
        if library != "huggingface":
            raise UserError(f"--library {library}: cannot train; use huggingface")
        yield Variant(run, changes_for_libraries(recipe), library)
        if device.type == "cuda":
            yield Variant(run, changes_for_libraries(recipe), library, compiled=True)


def list_changes(recipe: Recipe, device: torch.device) -> Iterator[Changes]:
    """Yield no change, then layouts, precisions, CUDA graphs and compilation that the recipe does not use yet."""
    yield ()
    training = recipe.training
    pack: Changes = ()
    if isinstance(recipe, TranslationRecipe) and not training.fixed_shapes:
        pack = () if recipe.batch.layout == "packed" else ("batch.layout=packed",)
        yield pack or ("batch.layout=padded",)
    if device.type == "cuda":
        yield from _list_gpu_changes(recipe, pack)
    elif training.precision != "bfloat16" and supports("bfloat16"):
        yield ("training.precision=bfloat16",)


def _list_gpu_changes(recipe: Recipe, pack: Changes) -> Iterator[Changes]:
    """Yield other precisions, and CUDA graphs and compilation if the recipe does not use them yet.

    Args:
        recipe: The recipe to change.
        pack: Changes that make its batches packed, which CUDA graphs and compilation need.
    """
    training = recipe.training
    bfloat16_residuals: Changes = ()
    if training.precision == "float32":
        yield ("training.precision=bfloat16",)
    elif isinstance(recipe, TranslationRecipe) and recipe.training.residual_dtype == "bfloat16":
        yield "training.precision=float32", "training.residual_dtype=float32"
    else:
        yield ("training.precision=float32",)
        if isinstance(recipe, TranslationRecipe):
            bfloat16_residuals = ("training.residual_dtype=bfloat16",)
            yield bfloat16_residuals
    if not training.uses_cuda_graph:
        yield (*pack, "training.cuda_graph=true")
        if bfloat16_residuals:
            yield (*pack, "training.cuda_graph=true", *bfloat16_residuals)
    if not training.compile:
        yield (*pack, "training.compile=true")


def changes_for_libraries(recipe: Recipe) -> Changes:
    """Settings for models of other libraries, which take padded batches and are not captured."""
    changes = [f"training.{key}=false" for key in ("cuda_graph", "compile") if getattr(recipe.training, key) is True]
    if isinstance(recipe, TranslationRecipe):
        changes += ["batch.layout=padded"] if recipe.batch.layout != "padded" else []
        changes += ["training.residual_dtype=float32"] if recipe.training.residual_dtype == "bfloat16" else []
    return tuple(changes)


def _time(variant: Variant, device: torch.device, seconds: float) -> Row:
    """Time a variant. A failure is a row of the table, except for the unchanged recipe."""
    try:
        return _time_variant(variant, device, seconds)
    except (UserError, RuntimeError) as error:
        if variant == Variant(variant.run):
            raise
        return Row(variant, None, " ".join(str(error).split())[:MAX_ERROR_LENGTH])
    finally:
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _time_variant(variant: Variant, device: torch.device, seconds: float) -> Row:
    task, recipe = variant.prepare(device)
    return Row(variant, time_steps(task, recipe, device, seconds))


def tabulate(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table; speeds relative to the first row of the same run are in parentheses."""
    several = len({row.variant.run for row in rows}) > 1
    columns: dict[str, list[str]] = {
        "": [f"{row.variant.run}, {row.variant.name}" if several else row.variant.name for row in rows],
        "per second": [_rate(row, rows) for row in rows],
        "step, ms": [f"{row.timing.step:,.1f}" if row.timing else "" for row in rows],
        "warm-up, s": [f"{row.timing.warm_up:.1f}" if row.timing else "" for row in rows],
    }
    if any(row.timing and row.timing.peak for row in rows):
        columns["peak, GB"] = [f"{(row.timing.peak or 0) / 1e9:.2f}" if row.timing else "" for row in rows]
        columns["KB each"] = [f"{(row.timing.per_unit or 0) / 1e3:,.1f}" if row.timing else "" for row in rows]
    return format_table([list(columns), *map(list, zip(*columns.values(), strict=True))])


def _rate(row: Row, rows: Sequence[Row]) -> str:
    first = next(one.timing for one in rows if one.variant.run == row.variant.run)
    if row.timing is None or first is None:
        return "failed"
    return f"{row.timing.rate:,.0f} {row.timing.unit} ({row.timing.rate / first.rate:.2f}×)"


def list_notes(rows: Sequence[Row]) -> list[str]:
    """Errors of failed variants and messages of the training loop."""
    errors = [f"{row.variant.name}: {row.error}" for row in rows if row.error]
    return errors + [f"{row.variant.name}: {note}" for row in rows if row.timing for note in row.timing.notes]


@dataclass(frozen=True)
class TransformersTeacherForcing(Objective):
    """Teacher forcing with a translation model of transformers."""

    label_smoothing: float

    def loss(self, model: nn.Module, batch: TextBatch, step: Step) -> LossSum:
        assert batch.real is not None  # batches are padded
        mask = batch.source_layout.real().long()  # type: ignore[union-attr]
        output = model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False)
        logits = output.logits.flatten(0, 1)[batch.real]
        return LossSum(cross_entropy(logits, batch.labels, self.label_smoothing), batch.count)


class TransformersCrossEntropy(Objective):
    """Classification with an image model of transformers."""

    def loss(self, model: nn.Module, batch: ImageBatch, step: Step) -> LossSum:
        return LossSum(F.cross_entropy(model(batch.images).logits.float(), batch.targets, reduction="sum"), len(batch))


def use_transformers_model(task: Any) -> None:
    """Replace the model of a task by one of transformers with the same weights; batches, optimizer and loop remain."""
    if not isinstance(task, ClassificationTask | TranslationTask):
        raise UserError("transformers has no two-view model")
    recipe: Any = task.recipe
    if recipe.objective != type(recipe).model_fields["objective"].default:
        raise UserError("only the default loss is supported; remove the settings of objective from the recipe")
    if isinstance(task, ClassificationTask):
        task.model = build_huggingface_classifier(Classifier(task.model, task.preprocessing)).to(task.device)
        task.objective = TransformersCrossEntropy()
    else:
        task.model = build_huggingface(task.translator).to(task.device)
        task.objective = TransformersTeacherForcing(recipe.optim.label_smoothing)
