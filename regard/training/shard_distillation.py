"""Distillation and back-translation of a folder of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from regard.data.text.readers import Pair
from regard.pipelines.shard_jobs import TranslatorSource
from regard.pipelines.shards import Column, Job, Part, Results, Rows
from regard.training.distillation import Corpus, Distillation, distill


@dataclass(frozen=True)
class DistillJob(Job):
    """Replaces the source and target of each row as `regard distill` does; other columns are kept.

    Attributes:
        has_references: Whether rows have a target.
    """

    columns: ClassVar[dict[str, Column]] = {"source": "text", "target": "text"}
    overwrites = True

    teacher: TranslatorSource
    distillation: Distillation
    has_references: bool

    def load(self) -> Callable[[Part, Rows], Results]:
        teacher = self.teacher.load()
        teacher.check_settings(self.distillation.search)

        def translate(part: Part, rows: Rows) -> Results:
            sources = rows.texts("source")
            targets = rows.texts("target") if self.has_references else [""] * len(rows)
            corpus = Corpus(lambda: map(Pair, sources, targets), self.has_references)
            written: list[list[Pair]] = []
            distill(teacher, corpus, self.distillation, written.append)
            pairs = [pair for line in written for pair in line]
            places = [row for row, line in enumerate(written) for _ in line]
            columns = {"source": [pair.source for pair in pairs], "target": [pair.target for pair in pairs]}
            return Results(places, columns)

        return translate
