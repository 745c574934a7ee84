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
from torch import Tensor, nn

from regard.errors import UserError, prefix_errors
from regard.interop.huggingface_translation import build_huggingface
from regard.interop.huggingface_vision import build_huggingface_classifier
from regard.ops.linear import supports
from regard.pipelines.classifier import Classifier
from regard.training.bench_runs import open_run
from regard.training.objectives.objective import cross_entropy
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.resume import DATA
from regard.training.step_timing import StepTiming, time_steps
from regard.training.task import LossSum, Step, Task
from regard.training.tasks.classification.batches import ImageBatch
from regard.training.tasks.classification.task import ClassificationTask
from regard.training.tasks.registry import task_of
from regard.training.tasks.translation.batches import TextBatch
from regard.training.tasks.translation.recipe import TranslationRecipe
from regard.training.tasks.translation.task import TranslationTask

MEASURED = "of complete steps: batch, loss, gradients, optimizer"
MAX_ERROR_LENGTH = 300
Changes = tuple[str, ...]
"""Settings to override, each written key=value."""


@dataclass(frozen=True)
class Variant:
    """A run with changed settings, or with the model of another library.

    Attributes:
        run: Path of the run, as given by the user.
        changes: Settings that override the recipe.
        library: Library whose model replaces ours; empty for our own.
        compiled: Whether that model is compiled.
    """

    run: str
    changes: Changes = ()
    library: str = ""
    compiled: bool = False

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
            task = with_transformers_model(task)
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
    training = recipe.training
    bfloat16: Changes = ()
    if training.precision == "float32":
        yield ("training.precision=bfloat16",)
    elif isinstance(recipe, TranslationRecipe) and recipe.training.residual_dtype == "bfloat16":
        yield "training.precision=float32", "training.residual_dtype=float32"
    else:
        yield ("training.precision=float32",)
        if isinstance(recipe, TranslationRecipe):
            bfloat16 = ("training.residual_dtype=bfloat16",)
            yield bfloat16
    if not training.uses_cuda_graph:
        yield (*pack, "training.cuda_graph=true")
        if bfloat16:
            yield (*pack, "training.cuda_graph=true", *bfloat16)
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
    lines = [list(columns), ["---"] * len(columns), *map(list, zip(*columns.values(), strict=True))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rate(row: Row, rows: Sequence[Row]) -> str:
    first = next(one.timing for one in rows if one.variant.run == row.variant.run)
    if row.timing is None or first is None:
        return "failed"
    return f"{row.timing.rate:,.0f} {row.timing.unit} ({row.timing.rate / first.rate:.2f}×)"


def list_notes(rows: Sequence[Row]) -> list[str]:
    """Errors of failed variants and messages of the training loop."""
    errors = [f"{row.variant.name}: {row.error}" for row in rows if row.error]
    return errors + [f"{row.variant.name}: {note}" for row in rows if row.timing for note in row.timing.notes]


class LibraryTask:
    """A task of ours with the model of another library: same batches, optimizer and loop."""

    def __init__(self, task: Any, model: nn.Module) -> None:
        self._task, self.model = task, model.to(task.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss(self, batch: Any, step: Step) -> LossSum:
        return LossSum(self.total_loss(batch), self._task.count(batch))

    def total_loss(self, batch: Any) -> Tensor:
        """Return the summed loss of a batch."""
        raise NotImplementedError


class TransformersTranslation(LibraryTask):
    """Teacher forcing with a translation model of transformers."""

    def total_loss(self, batch: TextBatch) -> Tensor:
        assert batch.real is not None  # batches are padded
        mask = batch.source_layout.real().long()  # type: ignore[union-attr]
        output = self.model(
            input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.inputs, use_cache=False
        )
        logits = output.logits.flatten(0, 1)[batch.real]
        return cross_entropy(logits, batch.labels, self._task.recipe.optim.label_smoothing)


class TransformersClassification(LibraryTask):
    """Classification with an image model of transformers."""

    def total_loss(self, batch: ImageBatch) -> Tensor:
        return F.cross_entropy(self.model(batch.images).logits.float(), batch.targets, reduction="sum")


def with_transformers_model(task: Task[Any]) -> Task[Any]:
    """Return the task with a model of transformers that has the same weights."""
    result: Any
    if isinstance(task, ClassificationTask | TranslationTask):
        _check_objective(task.recipe)
    if isinstance(task, ClassificationTask):
        model = build_huggingface_classifier(Classifier(task.model, task.preprocessing))
        result = TransformersClassification(task, model)
    elif isinstance(task, TranslationTask):
        result = TransformersTranslation(task, build_huggingface(task.translator))
    else:
        raise UserError("transformers has no two-view model")
    task_with_model: Task[Any] = result
    return task_with_model


def _check_objective(recipe: Any) -> None:
    if recipe.objective != type(recipe).model_fields["objective"].default:
        raise UserError("only the default loss is supported; remove the settings of objective from the recipe")
