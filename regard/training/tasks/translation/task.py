"""Translation as a task: parallel text in, a translator out."""

from __future__ import annotations

import json
import math
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.masks import Layout, Packed, Padded
from regard.data.batching import EpochOrder, plan_packed, plan_padded
from regard.data.text.encoding import tokenise_pairs
from regard.data.text.pairs import Pair
from regard.data.text.tokens import Ints, ParallelTokens, RaggedArray
from regard.evaluation import bleu, chrf, tokenisation_for
from regard.models.nat import NATransformer
from regard.models.transformer import Transformer
from regard.ops.cross_entropy import IGNORE_INDEX
from regard.pipelines.translator import Translator
from regard.training.batches import VARIES, move
from regard.training.objectives.config import ObjectiveSettings
from regard.training.objectives.objective import TranslationObjective
from regard.training.skip import ADVICE
from regard.training.state import DataShard, Position, Positioned
from regard.training.task import DivergedError, LossSum, Sample, Step, Validation
from regard.training.tasks.translation.batch_shape import PackedShape
from regard.training.tasks.translation.recipe import TranslationRecipe
from regard.training.workers import map_in_workers

B = TypeVar("B")


@dataclass(frozen=True)
class TextBatch:
    """Sentences side by side. Labels are the real tokens only; `real` says where in the padded target they stand.

    A batch that is filled up to a frame has IGNORE_INDEX for labels behind the `count` real ones.
    `links`, where words are aligned, has a row (sentence, target place, source place) for each pair of tokens that
    belong together; a target place is that of the label.
    """

    source: Tensor
    source_layout: Layout
    inputs: Tensor
    target_layout: Layout
    labels: Tensor
    real: Tensor | None
    rows: Ints = field(metadata=VARIES)  # which sentences of the corpus these are
    count: int = field(metadata=VARIES)  # of real labels
    framed: bool = False
    links: Tensor | None = None

    @property
    def sentences(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence, on either side."""
        return max(self.source_layout.longest, self.target_layout.longest)

    @property
    def places(self) -> int:
        """Tokens and padding of the larger side, which is what batch.tokens bounds."""
        return max(self.source.numel(), self.inputs.numel())

    def to(self, device: torch.device) -> TextBatch:
        return move(self, device)


class TranslationTask:
    """The decoder reads the reference and predicts each next token of it, as its `TranslationObjective` has it do."""

    def __init__(
        self,
        translator: Translator,
        train: ParallelTokens,
        valid: list[Pair],
        recipe: TranslationRecipe,
        device: torch.device,
    ) -> None:
        self.translator, self.train, self.valid, self.recipe, self.device = translator, train, valid, recipe, device
        self.model = translator.model
        self.width = self.model.config.width
        if recipe.training.residual_dtype == "bfloat16":
            self.model.source_embedding.stream = self.model.target_embedding.stream = torch.bfloat16
        objective = recipe.objective if isinstance(recipe.objective, ObjectiveSettings) else ObjectiveSettings()
        self.teacher = TranslationObjective(objective, recipe.optim.label_smoothing, recipe.training.compile)
        self.frame = PackedShape.of(train, recipe.batch.tokens) if recipe.training.fixed_sizes else None
        self.packed = recipe.batch.layout == "packed" or (recipe.batch.layout == "auto" and device.type == "cuda")
        vocabularies = translator.vocabularies
        self.valid_tokens = tokenise_pairs(valid, vocabularies.source, vocabularies.target)
        weights = [corpus.weight for corpus in recipe.data.all_corpora()] or [1.0]
        self.order = EpochOrder.of(recipe.training.seed, train.sizes, weights)

    def batches(self, position: Position, share: DataShard) -> Iterator[Positioned[TextBatch]]:
        planned = share.pick(self._planned(position))
        make = partial(_make, self.train, self.packed, self.model.config.pad, self.frame)
        workers = self.recipe.training.workers
        made = map_in_workers(make, planned, workers) if workers else map(make, planned)
        return prefetch(Positioned(item.batch.to(self.device), item.after) for item in made)

    def largest(self) -> TextBatch:
        """The longest sentences, as many as make a batch: no other batch is longer, and hardly any is larger."""
        chosen = self.train.longest_pairs(self.recipe.batch.tokens)
        source, target = self.train.source.lengths_at(chosen), self.train.target.lengths_at(chosen) - 1
        if self.packed:
            places = np.maximum(np.cumsum(source), np.cumsum(target))
        else:
            places = max(source[0], target[0]) * np.arange(1, len(chosen) + 1)
        fits = int(np.searchsorted(places, self.recipe.batch.tokens, side="right"))
        rows = chosen[: max(1, fits)]
        return collate(self.train, rows, self.packed, self.model.config.pad, self.frame).to(self.device)

    def count(self, batch: TextBatch) -> int:
        return batch.count

    def size(self, batch: TextBatch) -> int:
        return batch.places

    def split(self, batch: TextBatch) -> tuple[TextBatch, TextBatch] | None:
        half = batch.sentences // 2
        if not half:
            return None
        first, second = (self._collate(self.train, rows) for rows in (batch.rows[:half], batch.rows[half:]))
        return first.to(self.device), second.to(self.device)

    def describe(self, batch: TextBatch) -> str:
        if batch.sentences == 1:
            return f"a sentence of {batch.longest} tokens"
        return f"{batch.sentences} sentences of up to {batch.longest} tokens"

    def advise(self, batch: TextBatch) -> str:
        if batch.sentences == 1:
            return f"data.max_length={batch.longest // 2}, or a smaller model"
        return f"batch.tokens={batch.places // 2}"

    def loss(self, batch: TextBatch, step: Step) -> LossSum:
        return self.teach(self.model, batch, step)

    def note(self) -> str:
        """What whoever starts a run should know of it, if anything."""
        return ""

    def teach(self, model: nn.Module, batch: TextBatch, step: Step) -> LossSum:
        """What a model in training is to lower at a step."""
        assert isinstance(model, Transformer)
        return self.teacher.loss(model, batch, step)

    def examine(self, model: nn.Module, batch: TextBatch) -> LossSum:
        """The plain loss, without smoothing or anything that is for learning alone."""
        assert isinstance(model, Transformer)
        return TranslationObjective(ObjectiveSettings(), smoothing=0.0).loss(model, batch, 0)

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """The loss without smoothing, perplexity, and BLEU and chrF of translations, with some of them.

        Raises:
            DivergedError: the loss is no number.
        """
        assert isinstance(model, (Transformer, NATransformer))
        model.eval()
        rng = np.random.default_rng(0)
        plan = self._plan(self.valid_tokens, np.arange(len(self.valid_tokens)), rng)
        losses = [self.examine(model, self._collate(self.valid_tokens, rows).to(self.device)) for rows in plan]
        loss = sum(float(part.total) for part in losses) / max(1, sum(part.count for part in losses))
        if not math.isfinite(loss):
            raise DivergedError(f"the validation loss is {loss}, so the model has diverged; {ADVICE}, and begin anew")
        scores = {"loss": loss, "perplexity": math.exp(min(loss, 100))}
        samples: list[Sample] = []
        chosen = self.valid[: self.recipe.training.valid_sentences]
        if chosen:
            translator = Translator(model, self.translator.vocabularies, self.translator.languages)
            found = translator.hypotheses([pair.source for pair in chosen], self.recipe.search)
            translations, references = [best[0].text for best in found], [pair.target for pair in chosen]
            tokenisation = tokenisation_for(self.translator.languages[1])
            scores["bleu"] = bleu(translations, references, tokenisation).value
            scores["chrf"] = chrf(translations, references).value
            samples = [Sample(*chosen[i], translations[i]) for i in self._sampled(len(chosen))]
        watched = self.recipe.training.monitor
        if watched == "auto":
            watched = "bleu" if chosen else "loss"
        scores["score"] = -loss if watched == "loss" else scores[watched]
        return Validation(scores, samples)

    def _sampled(self, sentences: int) -> list[int]:
        """Which of the translated sentences are shown: always the same, from all over the set."""
        wanted = min(self.recipe.training.samples, sentences)
        return [i * sentences // wanted for i in range(wanted)]

    def save(self, folder: Path, model: nn.Module, scores: dict[str, Any]) -> None:
        assert isinstance(model, (Transformer, NATransformer))
        Translator(model, self.translator.vocabularies, self.translator.languages).save(folder)
        (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")

    def _planned(self, position: Position) -> Iterator[Positioned[Ints]]:
        """The rows of every training batch from a position on."""
        windows = range(position.window, self.order.windows)
        used = position.batch
        for epoch in count(position.epoch):
            for window in windows:
                rng = np.random.default_rng((self.recipe.training.seed, epoch, window))
                plan = self._plan(self.train, self.order.rows(epoch, window), rng, self.frame)
                for number, rows in enumerate(plan[used:], used + 1):
                    yield Positioned(rows, Position(epoch, number, window))
                used = 0
            windows = range(self.order.windows)

    def _plan(
        self, corpus: ParallelTokens, rows: Ints, rng: np.random.Generator, frame: PackedShape | None = None
    ) -> list[Ints]:
        """Which of these rows share a batch."""
        tokens, (source, target) = self.recipe.batch.tokens, corpus.lengths_at(rows)
        if self.packed:
            plan = plan_packed(source, target - 1, tokens, rng, None if frame is None else frame.sentences)
        else:
            plan = plan_padded(source, target - 1, tokens, rng)
        return [rows[chosen] for chosen in plan]

    def _collate(self, corpus: ParallelTokens, rows: Ints) -> TextBatch:
        return collate(corpus, rows, self.packed, self.model.config.pad)


def _make(
    corpus: ParallelTokens, packed: bool, pad: int, frame: PackedShape | None, planned: Positioned[Ints]
) -> Positioned[TextBatch]:
    """The batch of a plan; what was read of a mapped corpus need not stay in memory."""
    batch = collate(corpus, planned.batch, packed, pad, frame)
    corpus.release_pages()
    return Positioned(batch, planned.after)


def collate(corpus: ParallelTokens, rows: Ints, packed: bool, pad: int, frame: PackedShape | None = None) -> TextBatch:
    """One batch of these sentences: the decoder reads BOS to the last token and must say the first token to END."""
    source, target = corpus.source.take(rows), corpus.target.take(rows)
    steps = target.lengths - 1
    first = np.zeros(len(target.tokens), bool)
    first[target.offsets[:-1]] = True
    said = target.tokens[~first]
    labels = torch.from_numpy(said).long()
    links = None if corpus.links is None else _collate_links(corpus.links.take(rows))
    if packed:
        heard = target.tokens[~np.roll(first, -1)]  # what stands before a first token is the last of its neighbour
        if frame is not None:
            read, inputs = frame.fill(source.tokens, pad), frame.fill(heard, pad)
            layouts = frame.layout(source.lengths), frame.layout(steps)
            labels = frame.fill(said, IGNORE_INDEX)
        else:
            read, inputs = torch.from_numpy(source.tokens).long(), torch.from_numpy(heard).long()
            layouts = Packed.of(torch.from_numpy(source.lengths)), Packed.of(torch.from_numpy(steps))
        framed = frame is not None
        return TextBatch(read[None], layouts[0], inputs[None], layouts[1], labels, None, rows, len(said), framed, links)
    layout = Padded.of(torch.from_numpy(steps))
    read = torch.from_numpy(source.padded(pad)).long()
    inputs = torch.from_numpy(target.padded(pad)[:, :-1]).long()
    real = layout.real().flatten().nonzero()[:, 0]
    source_layout = Padded.of(torch.from_numpy(source.lengths))
    return TextBatch(read, source_layout, inputs, layout, labels, real, rows, len(said), links=links)


def _collate_links(links: RaggedArray) -> Tensor:
    """The links of some sentences, (L, 3), with the number of the sentence before each."""
    places = torch.from_numpy(links.tokens).long().view(-1, 2)
    sentences = torch.arange(len(links)).repeat_interleave(torch.from_numpy(links.lengths // 2))
    return torch.cat((sentences[:, None], places), 1)


def prefetch(batches: Iterator[B], ahead: int = 4) -> Iterator[B]:
    """Prepares batches in a thread of its own, so that the model does not wait for them."""
    ready: queue.Queue[B | BaseException | None] = queue.Queue(ahead)
    stop = threading.Event()

    def offer(item: B | BaseException | None) -> bool:
        """Waits for room, unless nobody wants any more."""
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not offer(batch):
                    return
            offer(None)
        except BaseException as error:
            offer(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
