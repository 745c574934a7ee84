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
    """Return whether a translation contains each placeholder as often as the source, positional ones in their order."""
    rest, order = translation, []
    for placeholder, count in sorted(Counter(placeholders).items(), key=lambda item: -len(item[0])):
        if rest.count(placeholder) != count or _is_extended(rest, placeholder):
            return False
        if POSITIONAL.fullmatch(placeholder):
            order += [(match.start(), placeholder) for match in re.finditer(re.escape(placeholder), rest)]
        rest = rest.replace(placeholder, "\0" * len(placeholder))
    positional = [placeholder for placeholder in placeholders if POSITIONAL.fullmatch(placeholder)]
    return [placeholder for _, placeholder in sorted(order)] == positional and not PLACEHOLDER.search(rest)


def _is_address(placeholder: str) -> bool:
    return placeholder.startswith(("http", "www.")) or "@" in placeholder[1:-1]


def _is_extended(text: str, placeholder: str) -> bool:
    """Return whether letters follow an address, which would then be part of it."""
    return _is_address(placeholder) and re.search(re.escape(placeholder) + r"[\w/@]", text) is not None


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
            left = self._space(start - 1, placeholder, placeholder[0], translation[:place][-1:])
            right = self._space(stop, placeholder, placeholder[-1], translation[place : place + 1])
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

    def _space(self, index: int, placeholder: str, edge: str, neighbour: str) -> str:
        """Return what separates a placeholder from a character of the translation: a space or nothing.

        Args:
            index: Place in the sentence of the character beside the placeholder.
            placeholder: The placeholder.
            edge: Outer character of the placeholder.
            neighbour: Character of the translation.
        """
        if not neighbour.isalnum():
            return ""
        if "\u3000" <= neighbour <= "\u9fff":  # written without spaces, but an address would include it
            return " " if _is_address(placeholder) else ""
        beside = self._sentence[index] if 0 <= index < len(self._sentence) else ""
        return " " if beside == " " or edge.isalnum() else ""
