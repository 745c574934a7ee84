"""Jobs over shards that need a model: translation, scores of pairs, and embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from regard.data.text.glossary import Glossary
from regard.data.text.readers import Pair
from regard.decoding.settings import DecodingSettings
from regard.models.folder import find_model_folder, model_input_type
from regard.ops.dispatch import choose_device
from regard.pipelines.constraints import Constraints
from regard.pipelines.embedder import Embedder
from regard.pipelines.pair_scores import PairScorer
from regard.pipelines.shards import Column, Job, Part, Results, Rows
from regard.pipelines.translator import Translator


@dataclass(frozen=True)
class TranslatorSource:
    """The translator of a job, which each worker loads.

    Attributes:
        runs: Model folders; several of them form an ensemble.
        device: Device, or "auto".
        precision: Precision of the weights, as in `Translator.load`.
        languages: Source and target language of a model with several directions.
        glossary: File of terms.
    """

    runs: tuple[Path, ...]
    device: str = "auto"
    precision: str | None = None
    languages: tuple[str | None, str | None] = (None, None)
    glossary: Path | None = None

    def load(self) -> Translator:
        glossary = None if self.glossary is None else Glossary.read(self.glossary)
        device = choose_device(self.device)
        translator = Translator.load(*self.runs, device=device, precision=self.precision).select(*self.languages)
        translator.glossary = glossary
        return translator


@dataclass(frozen=True)
class TranslateJob(Job):
    """Adds the best translation of each row; the texts equal those of `regard translate`."""

    columns: ClassVar[dict[str, Column]] = {"translation": "text"}

    translator: TranslatorSource
    settings: DecodingSettings
    key: str = "source"
    split: bool = True
    constraints: Constraints | None = None

    def load(self) -> Callable[[Part, Rows], Results]:
        translator = self.translator.load()
        translator.check_settings(self.settings)

        def translate(part: Part, rows: Rows) -> Results:
            found = translator.hypotheses(rows.texts(self.key), self.settings, self.constraints, split=self.split)
            return Results(range(len(rows)), {"translation": [n_best[0].text for n_best in found]})

        return translate


@dataclass(frozen=True)
class ScoreJob(Job):
    """Adds the cross-entropy of each target given its source, in nats per token; null for pairs that are too long.

    With a model of the opposite direction, it is the dual cross-entropy; see `PairScorer`.
    """

    columns: ClassVar[dict[str, Column]] = {"score": "number"}

    forward: TranslatorSource
    backward: TranslatorSource | None = None
    keys: tuple[str, str] = ("source", "target")

    def load(self) -> Callable[[Part, Rows], Results]:
        scorer = PairScorer(self.forward.load(), None if self.backward is None else self.backward.load())

        def score(part: Part, rows: Rows) -> Results:
            pairs = [Pair(*texts) for texts in zip(*(rows.texts(key) for key in self.keys), strict=True)]
            scores = [None if math.isnan(value) else round(value, 6) for value in scorer(pairs).tolist()]
            return Results(range(len(rows)), {"score": scores})

        return score


@dataclass(frozen=True)
class EmbedJob(Job):
    """Writes one vector per row: row i of a .npy file belongs to row i of the shard."""

    columns: ClassVar[dict[str, Column]] = {"embedding": "vector"}
    suffix = ".npy"

    run: Path
    device: str = "auto"
    key: str = "source"

    def load(self) -> Callable[[Part, Rows], Results]:
        is_translator = model_input_type(find_model_folder(self.run)) != "sentences"
        model = (Translator if is_translator else Embedder).load(self.run, device=choose_device(self.device))

        def embed(part: Part, rows: Rows) -> Results:
            vectors = torch.stack(model.embed(rows.texts(self.key))).float().cpu().numpy()
            return Results(range(len(rows)), {"embedding": list(vectors)})

        return embed
