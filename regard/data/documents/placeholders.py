"""Placeholders, addresses and code in a text, which a translation contains unchanged."""

import re
from collections import Counter
from collections.abc import Sequence

from regard.data.documents.marked_text import AlignedSpan, Range

# Quantifiers are bounded, so that searching takes linear time.
PLACEHOLDER = re.compile(
    r"""
    https?://[^\s<>"'`，。；！？、）」』】]{1,2000}(?<![.,;:!?)])     # URL, without the punctuation after it
    | www\.[^\s<>"'`，。；！？、）」』】]{1,2000}(?<![.,;:!?)])
    | (?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}    # mail address
    | (?::[\w+.-]{1,40}){1,3}:`[^`\n]{1,300}`                        # :mod:`x` of reStructuredText
    | ``(?:[^`\n]|`(?!`)){1,300}``                                   # ``code``
    | `[^`\n]{1,300}`_{0,2}                                          # `code`, and links of reStructuredText
    | (?<![\w|])\|[\w-]{1,60}\|(?![\w|])                             # |substitution|
    | \{\{[^{}\n]{0,100}\}\}                                         # {{ name }}
    | [$#%]?\{[^{}\n]{0,100}\}                                       # {name}, ${name}, %{name}
    | %\(\w{1,60}\)[-+0#]?\d{0,4}(?:\.\d{1,4})?[sdifuxXoeEgGcra]     # %(name)s
    | %(?:\d{1,2}\$)?[-+0#]?\d{0,4}(?:\.\d{1,4})?(?:hh|h|ll|l|z)?[sdifuxXoeEgGcra@](?![a-zA-Z]{2})  # %s, %1$d, %.2f
    """,
    re.X,
)
POSITIONAL = re.compile(r"%[^(\d$]*[sdifuxXoeEgGcra@]|%\d{0,4}(?:\.\d+)?[sdifuxXoeEgGcra@]|\{(?:[!:][^{}]*)?\}")
"""Placeholders that are filled in their order."""
MESSAGE = re.compile(r"\{\s*\w{1,60}\s*,\s*(?:plural|select|selectordinal)\s*,")
"""Start of an ICU message, whose cases are not translated."""


def find_placeholders(text: str, protected: Sequence[Range] = ()) -> list[Range]:
    """Return the ranges of all placeholders of a text, and the protected ranges, in order and without overlap."""
    found = sorted([*protected, *(match.span() for match in PLACEHOLDER.finditer(text))])
    merged: list[Range] = []
    for start, stop in found:
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def has_words(text: str, placeholders: Sequence[Range] = ()) -> bool:
    """Return whether a text has letters outside of its placeholders."""
    position = 0
    for start, stop in [*placeholders, (len(text), len(text))]:
        if any(map(str.isalpha, text[position:start])):
            return True
        position = stop
    return False


def keeps(translation: str, placeholders: Sequence[str]) -> bool:
    """Return whether a translation contains exactly these placeholders, and positional ones in their order."""
    rest = translation
    for placeholder in sorted(placeholders, key=len, reverse=True):
        if PLACEHOLDER.fullmatch(placeholder):
            continue
        if placeholder not in rest:  # protected text, such as code, which may contain placeholders
            return False
        rest = rest.replace(placeholder, "\0" * len(placeholder), 1)
    found = PLACEHOLDER.findall(rest)
    expected = [placeholder for placeholder in placeholders if PLACEHOLDER.fullmatch(placeholder)]
    in_order = [list(filter(POSITIONAL.fullmatch, some)) for some in (found, expected)]
    return Counter(found) == Counter(expected) and in_order[0] == in_order[1]


class Reduced:
    """A sentence without its placeholders, which are put into its translation afterwards."""

    def __init__(self, sentence: str, placeholders: Sequence[Range]) -> None:
        self._sentence, self._placeholders = sentence, placeholders
        pieces, self._positions, position = list[str](), list[int](), 0  # position in the sentence of each character
        for start, stop in [*placeholders, (len(sentence), len(sentence))]:
            piece = sentence[position:start]
            if pieces and pieces[-1].endswith(" ") and piece.startswith(" "):
                piece, position = piece[1:], position + 1
            pieces.append(piece)
            self._positions += range(position, position + len(piece))
            position = stop
        text = "".join(pieces)
        self.text = text.strip()
        self._positions = self._positions[len(text) - len(text.lstrip()) :][: len(self.text)]

    def restore(self, translation: str, spans: Sequence[AlignedSpan]) -> tuple[str, list[AlignedSpan]]:
        """Put the placeholders into the translation of the reduced sentence, before the words that follow them.

        Return the result, and its alignment with the sentence. Placeholders keep their order.
        """
        original = [self._to_original(span) for span in spans]
        places, last = [], 0
        for start, stop in self._placeholders:
            last = max(last, self._find_place(translation, original, stop))
            places.append((last, (start, stop)))
        pieces, restored, length, position = list[str](), list[AlignedSpan](), 0, 0
        shifts: list[tuple[int, int]] = []  # position in the translation, length of what stands before it
        for place, (start, stop) in places:
            before, placeholder = translation[position:place], self._sentence[start:stop]
            beside = self._sentence[:start][-1:], self._sentence[stop : stop + 1]
            left = self._separate(placeholder, beside[0], translation[:place][-1:], is_after=False)
            right = self._separate(placeholder, beside[1], translation[place : place + 1], is_after=True)
            length += len(before)
            inserted = length + len(left)
            restored.append(AlignedSpan((start, stop), (inserted, inserted + len(placeholder))))
            pieces += [before, left, placeholder, right]
            length = inserted + len(placeholder) + len(right)
            position = place
            shifts.append((place, length - place))
        pieces.append(translation[position:])
        for span in original:
            shift = max((amount for place, amount in shifts if place <= span.target[0]), default=0)
            restored.append(span.shift(0, shift))
        return "".join(pieces), restored

    def _to_original(self, span: AlignedSpan) -> AlignedSpan:
        """Return a span of the reduced sentence as one of the sentence."""
        start, stop = (min(max(position, 0), len(self._positions)) for position in span.source)
        if start >= stop:
            return span
        return AlignedSpan((self._positions[start], self._positions[stop - 1] + 1), span.target, span.is_sentence)

    def _find_place(self, translation: str, spans: Sequence[AlignedSpan], after: int) -> int:
        """Return the place in the translation of a placeholder that ends at a position of the sentence."""
        following = [span for span in spans if not span.is_sentence and span.source[0] >= after]
        if following:
            return min(following, key=lambda span: (span.source[0], span.target[0])).target[0]
        end = len(translation)
        if not any(map(str.isalnum, self._sentence[after:])):  # only punctuation follows
            while end and not (translation[end - 1].isalnum() or translation[end - 1].isspace()):
                end -= 1
        return end

    def _separate(self, placeholder: str, beside: str, neighbour: str, is_after: bool) -> str:
        """Return what separates a placeholder from the character next to it in the translation: a space or nothing.

        Args:
            placeholder: The placeholder.
            beside: Character next to it in the sentence.
            neighbour: Character next to it in the translation.
            is_after: Whether these follow the placeholder.
        """
        if not neighbour or neighbour.isspace():
            return ""
        joined = placeholder + neighbour if is_after else neighbour + placeholder
        if PLACEHOLDER.fullmatch(placeholder) and PLACEHOLDER.findall(joined) != [placeholder]:
            return " "  # such as an address, which would include the character
        if not neighbour.isalnum() or "\u3000" <= neighbour <= "\u9fff":  # punctuation, or written without spaces
            return ""
        return "" if beside.isalnum() and not placeholder[-1 if is_after else 0].isalnum() else " "
