"""Translators without a model, for tests of documents."""

import re

from regard.data.documents.marked_text import AlignedSpan
from regard.data.documents.segment_translation import AlignedTranslation, Requests


def identity(requests: Requests) -> list[AlignedTranslation]:
    """Return every sentence unchanged."""
    return [
        AlignedTranslation(one.text, [AlignedSpan(word.span(), word.span()) for word in re.finditer(r"\S+", one.text)])
        for one in requests
    ]


def reverse(requests: Requests) -> list[AlignedTranslation]:
    """Translate into other case and reverse word order, which moves tags and destroys placeholders."""
    results = []
    for one in requests:
        words: list[str] = []
        spans: list[AlignedSpan] = []
        for word in reversed([*re.finditer(r"\S+", one.text)]):
            start = len(" ".join([*words, ""]))
            words.append(word[0].swapcase())
            spans.append(AlignedSpan(word.span(), (start, start + len(word[0].swapcase()))))
        results.append(AlignedTranslation(" ".join(words), spans))
    return results


def unaligned(requests: Requests) -> list[AlignedTranslation]:
    """Translate into capital Greek letters without spaces or an alignment, as an engine without attention."""
    return [AlignedTranslation("Ω" * max(1, len(one.text) // 3)) for one in requests]


TRANSLATORS = {"identity": identity, "reverse": reverse, "unaligned": unaligned}
