"""Choose the word of a translation to explain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import UserError
from regard.inspection.translation import check_not_blank, check_target
from regard.inspection.words import END, SPACE_MARK, group_words, readable_labels
from regard.models.transformer import Transformer

Tokens = Sequence[int]


@dataclass(frozen=True)
class TargetWord:
    """A word of a translation, and the tokens that the model has read before it predicts this word.

    Attributes:
        sentence: The sentence that is translated.
        source: Its token ids, with END.
        prefix: Token ids of the translation before the word, with BOS.
        pieces: Token ids of the word; several if the word has several pieces.
        label: Text of the word.
        start: Index of its first token in the translation.
        target: Token ids of the whole translation, without END.
    """

    sentence: str
    source: tuple[int, ...]
    prefix: tuple[int, ...]
    pieces: tuple[int, ...]
    label: str
    start: int
    target: tuple[int, ...]


def check_explainable(translator: Any) -> Transformer:
    """Return the model of a translator, or raise a `UserError` if its words cannot be explained."""
    model = translator.model
    if not isinstance(model, Transformer):
        raise UserError("a non-autoregressive model predicts all words in parallel; explain an autoregressive model")
    if len(translator.models) > 1:
        raise UserError("an ensemble has several embeddings; explain one of its models at a time")
    if model.target_embedding.weight.is_meta:
        raise UserError("CTranslate2 does not return gradients or states; use the engine regard")
    return model


def translate_tokens(translator: Any, sentence: str, settings: Any = None) -> list[int]:
    """Return the tokens of the best translation of a sentence, without END."""
    check_not_blank(sentence)
    tokens: list[int] = translator.hypotheses([sentence], settings, split=False)[0][0].tokens
    return tokens


def choose_word(translator: Any, sentence: str, word: str | int, target: Tokens | None = None) -> TargetWord:
    """Find a word of a translation.

    Args:
        translator: A `Translator` with one autoregressive model.
        sentence: The sentence that is translated.
        word: Text that occurs in the translation, END, or the position of a token, counted from 1.
        target: Token ids of the translation, without END. Defaults to the best translation of the model.

    Raises:
        UserError: The word does not occur in the translation, or the model cannot be explained.
    """
    config = check_explainable(translator).config
    check_not_blank(sentence)
    target = list(translate_tokens(translator, sentence) if target is None else target)
    check_target(translator, target)
    start, stop = _find(translator.vocabularies.target, target, word)
    pieces = tuple(target[start:stop]) or (config.eos,)
    source = tuple(config.source_tokens(translator.vocabularies.source.encode(sentence)))
    label = _text_of(translator.vocabularies.target, pieces, config.eos)
    return TargetWord(sentence, source, (config.bos, *target[:start]), pieces, label, start, tuple(target))


def choose_alternative(translator: Any, word: TargetWord, alternative: str) -> tuple[tuple[int, ...], str]:
    """Return the tokens of another word in the same position, and its text.

    Raises:
        UserError: The alternative is empty, or it is the word itself.
    """
    eos = check_explainable(translator).config.eos
    vocabulary = translator.vocabularies.target
    if alternative == END:
        pieces: tuple[int, ...] = (eos,)
    else:
        prefix = list(word.prefix[1:])
        before = vocabulary.decode(prefix)
        spaced = before and vocabulary.tokens(word.pieces)[0].startswith(SPACE_MARK)
        text = f" {alternative.strip()}" if spaced else alternative.strip()
        whole = vocabulary.encode(before + text)
        # Merges across the boundary would change the tokens of the prefix.
        pieces = tuple(whole[len(prefix) :] if whole[: len(prefix)] == prefix else vocabulary.encode_continuation(text))
    if not pieces:
        raise UserError(f"{alternative!r} has no tokens; give a word to compare {word.label} with")
    if pieces == word.pieces:
        raise UserError(f"{alternative} is the word itself; give another word to compare it with")
    return pieces, _text_of(vocabulary, pieces, eos)


def find_source_tokens(translator: Any, sentence: str, word: str) -> list[int]:
    """Return the positions of the tokens of a source word, which is given as text or as a position counted from 1."""
    tokens = translator.vocabularies.source.encode(sentence)
    words = group_words(translator.vocabularies.source, tokens)
    found = [index for label, group in zip(words.labels, words.tokens, strict=True) if label == word for index in group]
    if found:
        return found
    if word == END:
        return [len(tokens)]
    if word.isdecimal() and 1 <= int(word) <= len(words.labels):
        return words.tokens[int(word) - 1]
    labels = " ".join(f"{i}:{label}" for i, label in enumerate(words.labels, 1))
    raise UserError(f"{word!r} is not a word of {sentence!r}; give one of its words or positions: {labels}")


def _find(vocabulary: Any, target: Tokens, word: str | int) -> tuple[int, int]:
    """Return the first token of a word, and the token after it; both are the number of tokens for END."""
    text = vocabulary.decode(target)
    wanted = str(word).strip()
    if wanted == END:
        return len(target), len(target)
    at = text.find(wanted) if wanted and not isinstance(word, int) else -1
    if at >= 0:
        spans = vocabulary.char_spans(target)
        inside = [i for i, (begin, end) in enumerate(spans) if begin < at + len(wanted) and end > at]
        return inside[0], inside[-1] + 1
    if wanted.isdecimal() and 1 <= int(wanted) <= len(target) + 1:
        return int(wanted) - 1, min(int(wanted), len(target))
    labels = " ".join(f"{i}:{label}" for i, label in enumerate([*readable_labels(vocabulary.tokens(target)), END], 1))
    raise UserError(f"{wanted!r} is not in the translation {text!r}; give one of its words or positions: {labels}")


def _text_of(vocabulary: Any, pieces: Tokens, eos: int) -> str:
    return END if list(pieces) == [eos] else "".join(readable_labels(vocabulary.tokens(pieces)))
