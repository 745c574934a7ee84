"""From the texts of a request to jobs for a model, and from their results to answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from regard.data.text.sentences import SplitText, single_sentence, split_sentences
from regard.serving.config import Limits
from regard.serving.html_documents import Page
from regard.serving.messages import Job, ModelInfo, Translation

Format = Literal["text", "html"]


class Document(Protocol):
    """A text as sentences, and the way back."""

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        """Every sentence, and whether it has to come with its alignment."""

    def render(self, translations: Sequence[Translation]) -> str:
        """The text with a translation for every sentence."""


@dataclass(frozen=True)
class Plain:
    """A text without markup."""

    split: SplitText
    alignments: bool = False

    @property
    def sentences(self) -> list[tuple[str, bool]]:
        return [(sentence.text, self.alignments) for sentence in self.split.sentences]

    def render(self, translations: Sequence[Translation]) -> str:
        return self.split.join([one.text for one in translations])


class Reader:
    """Makes documents and jobs for one model: sentences that it can read, and their lengths in its tokens."""

    def __init__(self, about: ModelInfo, limits: Limits) -> None:
        assert about.tokenizer is not None
        self._tokenizer = about.tokenizer
        self._count = lru_cache(256)(self._count_tokens)  # a sentence is counted when a text is cut, and for its batch
        self._longest = min(limits.sentence_tokens, about.longest or limits.sentence_tokens)

    def read(self, text: str, form: Format = "text", split: bool = True, alignments: bool = False) -> Document:
        """The text as a document; without `split` it is one sentence, as far as that fits the model."""
        if form == "html":
            return Page(text, self._fits)
        return Plain(split_sentences(text, self._fits) if split else single_sentence(text, self._fits), alignments)

    def jobs(self, document: Document, n_best: int = 1) -> list[Job]:
        """What the model has to do for a document."""
        return [
            Job("translate", text, (("n_best", n_best), ("alignments", aligned)), self.count(text) + 1)
            for text, aligned in document.sentences
        ]

    def embedding_jobs(self, texts: Sequence[str], pool: str) -> list[Job]:
        """What the model has to do for vectors; texts are not split."""
        return [Job("embed", text, (("pool", pool),), self.count(text) + 1) for text in texts]

    def count(self, text: str) -> int:
        """How many tokens the model reads of a text."""
        return self._count(text)

    def _fits(self, sentence: str) -> bool:
        return self.count(sentence) <= self._longest

    def _count_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text))


def render_all(document: Document, found: Sequence[Sequence[Translation]], n_best: int) -> list[str]:
    """The n best versions of a whole document: the k-th of each sentence, or the last that it has, side by side."""
    versions = [document.render([best[min(k, len(best) - 1)] for best in found]) for k in range(n_best)]
    return list(dict.fromkeys(versions)) or [document.render([])]
