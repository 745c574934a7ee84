"""Inline annotation of terms with their translations in source tokens (Dinu et al., 2019).

An annotated term is `<term>`, the term, `<as>`, its translation and `</term>`. The markers are tokens in the vocabulary
of a model that was trained with annotation, and of no other model.
"""

import zlib
from collections.abc import Sequence

from regard.data.text.glossary import Glossary, TermMatch, find_target
from regard.data.text.readers import Pair
from regard.data.text.tokenizer import Tokenizer

MARKERS = ("<term>", "<as>", "</term>")


def is_annotated(tokenizer: Tokenizer) -> bool:
    """Return whether a source tokenizer has the markers."""
    return all(tokenizer.find_token(marker) is not None for marker in MARKERS)


def encode_with_terms(tokenizer: Tokenizer, text: str, matches: Sequence[TermMatch]) -> list[int]:
    """Return the tokens of a text in which terms are annotated; all other tokens are those of the text.

    Args:
        tokenizer: Tokenizer of the source language, with the markers and the subwords of the target language.
        text: A source text.
        matches: Its terms, from left to right.
    """
    start_marker, as_marker, end_marker = (tokenizer.encode_continuation(marker)[0] for marker in MARKERS)

    def encode(start: int, end: int) -> list[int]:
        part = text[start:end]
        return (tokenizer.encode(part) if start == 0 else tokenizer.encode_continuation(part)) if part else []

    tokens: list[int] = []
    position = 0
    for match in matches:
        start = match.start - (match.start > position and text[match.start - 1] == " ")  # a space belongs to its word
        tokens += [*encode(position, start), start_marker, *encode(start, match.end)]
        tokens += [as_marker, *tokenizer.encode_phrase(match.term.target), end_marker]
        position = match.end
    return tokens + encode(position, len(text))


class TermAnnotation:
    """Annotates a share of the training pairs that have a term in the source and its translation in the target.

    The choice depends only on the pair.

    Args:
        glossary: The terms.
        language: Code of the source language.
        tokenizer: Tokenizer of the source language; see `encode_with_terms`.
        share: Share of these pairs that are annotated.
    """

    def __init__(self, glossary: Glossary, language: str, tokenizer: Tokenizer, share: float) -> None:
        self._glossary, self._language, self._tokenizer, self._share = glossary, language, tokenizer, share
        self.count = 0

    def __call__(self, pair: Pair, tokens: list[int]) -> list[int]:
        """Return the tokens of the source of a pair, annotated or as they are."""
        if zlib.crc32("\t".join(pair).encode()) >= self._share * 2**32:
            return tokens
        found = self._glossary.find(pair.source, self._language)
        matches = [match for match in found if find_target(pair.target, match.term.target)]
        self.count += bool(matches)
        return encode_with_terms(self._tokenizer, pair.source, matches) if matches else tokens
