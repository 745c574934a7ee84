"""Lossless tokenizer: text to token ids and back; `Vocabularies` are the tokenizers of both sides of a translator.

The `tokenizers` library learns and applies the subword units. This module fixes the order of the ids, prevents text
such as "<eos>" from being read as a special token, and decodes through bytes, so that any text survives a round trip.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise, repeat
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from regard.errors import UserError
from regard.files import one_line, read_text

SPACE_MARK = "▁"
"""Displays a space. The vocabulary itself contains plain spaces, so this character needs no escaping in text."""

MIN_COUNT = 2
"""Rarer characters, merges and words are not added to the vocabulary."""

BATCH = 16_384
"""Number of texts encoded at once; the results of the library need much more memory than their ids."""

# Text is split into words, and no token crosses a word boundary. Letters and symbols are never in the same word, which
# also prevents "<eos>" in a text from being found in the vocabulary. Words have a maximum length because the training
# time is quadratic in it.
_COMMON_WORDS = (
    r" ?[\p{L}\p{M}&&[^\p{Han}]]{1,200}",  # letters and combining marks
    r" ?\p{N}",  # one digit
    r" ?[^\s\p{L}\p{M}\p{N}\p{Han}]{1,200}",  # symbols
    r" {1,200}(?= )",  # all but the last of several spaces: the last one belongs to the next word
    r" ",
    r"[^\S ]{1,200}",  # other white space
)
WORD_PATTERNS = {
    "bpe": "|".join((r" ?\p{Han}{1,200}", *_COMMON_WORDS)),
    # Han characters do not include a preceding space; otherwise each would be two words.
    "word": "|".join((r"\p{Han}", *_COMMON_WORDS)),
}

_PROBE = f"  <eos> <0x41>É{SPACE_MARK}\n "
"""A text that most tokenizers not made by this class would change."""

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
"""Scripts without spaces between words."""
LEADING_SPACE = normalizers.Sequence(
    [normalizers.Prepend(" "), normalizers.Replace(Regex(rf"\A (?=[^\s{_UNSPACED}]*[{_UNSPACED}])"), "")]
)
"""Makes the first word of a text start with a space like all others, unless it is in a script without spaces.

A text that starts with a space gets another one, so that decoding can always remove a leading space.
"""


_Value = TypeVar("_Value")


class Tokenizer:
    """A vocabulary of tokens and the rules that split text into them.

    The ids are, in this order: four special tokens, 256 bytes, learned tokens, tokens added later. Characters outside
    the vocabulary are encoded as bytes, so that `<unk>` never occurs. For any text, `decode(encode(text))` is the text
    in Unicode normalisation form NFC. Special tokens cannot be written in text: "<eos>" is five characters.

    Methods that take text raise a UserError for lone surrogates, methods that take ids a ValueError for unknown ids.
    """

    PAD: ClassVar[int] = 0
    BOS: ClassVar[int] = 1
    EOS: ClassVar[int] = 2
    UNK: ClassVar[int] = 3
    SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", "<unk>")
    FIXED_TOKENS: ClassVar[tuple[str, ...]] = (*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)))

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer of the library, which should come from `train` or `load`."""
        self._backend = backend
        # This class adds the leading space itself: the normaliser of the library would add one after every added token.
        backend.normalizer = normalizers.Sequence([])
        vocabulary = backend.get_vocab()
        self._tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        fixed = [b"" for _ in self.SPECIAL_TOKENS] + [bytes([byte]) for byte in range(256)]
        self._bytes = fixed + [token.encode("utf-8") for token in self._tokens[len(fixed) :]]

    @classmethod
    def train(cls, lines: Iterable[str], size: int, kind: Literal["bpe", "word"] = "bpe") -> "Tokenizer":
        """Learn a vocabulary of at most `size` tokens; the same lines always give the same vocabulary.

        Args:
            lines: Training text, which is read once. Its distinct words are held in memory.
            size: Maximum size of the vocabulary, including special tokens and bytes.
            kind: "bpe" learns byte-pair merges. "word" uses frequent words, where every Han character is a word, and
                spells other words as characters.

        Raises:
            UserError: If `size` is too small, `kind` is unknown, or the text is empty or not valid Unicode.
        """
        if kind not in WORD_PATTERNS:
            raise UserError(f'The tokenizer kind "{kind}" is not known; it must be "bpe" or "word".')
        num_learned = size - len(cls.FIXED_TOKENS)
        if num_learned < 1:
            raise UserError(
                f"A vocabulary of size {size} is too small: {len(cls.SPECIAL_TOKENS)} special tokens, 256 bytes and at "
                f"least one learned token need {len(cls.FIXED_TOKENS) + 1}."
            )
        splitter = pre_tokenizers.Split(Regex(WORD_PATTERNS[kind]), "isolated")
        word_counts = _count_words(lines, splitter)
        alphabet = _choose_alphabet(word_counts, num_learned)
        if kind == "bpe":
            learned, merges = _learn_merges(word_counts, alphabet, num_learned)
        else:
            learned, merges = _choose_words(word_counts, alphabet, num_learned), []
        model = models.BPE(
            {token: index for index, token in enumerate([*cls.FIXED_TOKENS, *learned])},
            merges,
            unk_token=cls.SPECIAL_TOKENS[cls.UNK],
            byte_fallback=True,
            ignore_merges=kind == "word",  # look up the complete word before spelling it
        )
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer = splitter
        return cls(backend)

    def with_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer with additional tokens, which are never split and match anywhere in a text.

        Texts without these tokens are encoded as before. A leading space is part of a token.

        Raises:
            UserError: If a token is blank, a duplicate or already in the vocabulary, or contains a control character
                or "▁".
        """
        backend = self._copy()
        added: list[str] = []
        for token in tokens:
            added.append(self._check_new(token, added))
        backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
        return Tokenizer(backend)

    def _check_new(self, token: str, others: Sequence[str]) -> str:
        text, name = _normalise(token, f"the token {token!r}"), f"The new token {token!r}"
        if not text.strip():
            raise UserError(f"{name} is blank; a token needs at least one visible character.")
        if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in text):
            raise UserError(f"{name} contains a control character or a line separator; remove it.")
        if SPACE_MARK in text:
            raise UserError(f'{name} contains "{SPACE_MARK}", which stands for a space; write the space itself.')
        if text in others:
            raise UserError(f"{name} is given twice; give it once.")
        is_one_token = len(self.encode_continuation(text)) == 1 or len(self.encode(text)) == 1
        if is_one_token or text in self._backend.get_vocab():
            raise UserError(f"{name} is already in the vocabulary; omit it.")
        return text

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {len(self):,} tokens)"

    @property
    def kind(self) -> Literal["bpe", "word"]:
        """The `kind` that was passed to `train`."""
        return "word" if json.loads(self._backend.to_str())["model"]["ignore_merges"] else "bpe"

    @property
    def vocabulary(self) -> list[str]:
        """All tokens by id, with plain spaces as in the file."""
        return list(self._tokens)

    @property
    def token_bytes(self) -> list[bytes]:
        """UTF-8 bytes of each token in decoded text, in the order of the ids; empty for special tokens."""
        return list(self._bytes)

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without `<bos>` and `<eos>`."""
        return self._backend.encode(_add_leading_space(text, "the text")).ids

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of a text that directly follows other text: no leading space is added."""
        return self._backend.encode(_normalise(text, "the text")).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts faster than one by one."""
        ids: list[list[int]] = []
        for start in range(0, len(texts), BATCH):
            normalised = [
                _add_leading_space(text, f"text {number} of the batch")
                for number, text in enumerate(texts[start : start + BATCH], start=start)
            ]
            ids.extend(encoding.ids for encoding in self._backend.encode_batch_fast(normalised))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special tokens are skipped, invalid byte sequences give U+FFFD."""
        return b"".join(self._look_up(ids, self._bytes)).decode("utf-8", errors="replace").removeprefix(" ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token of every id for display, with "▁" for a space."""
        return [token.replace(" ", SPACE_MARK) for token in self._look_up(ids, self._tokens)]

    def char_spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        """Return the start and end of every token in the decoded text; byte tokens have the span of their character.

        After an invalid byte sequence, spans may be shifted to the right, but they never exceed the text.
        """
        ids = list(ids)
        token_bytes = list(self._look_up(ids, self._bytes))
        characters = b"".join(token_bytes).decode("utf-8", errors="surrogateescape")
        byte_owners = [i for i, c in enumerate(characters) for _ in c.encode("utf-8", errors="surrogateescape")]
        shift = 1 if characters.startswith(" ") else 0  # the leading space that `decode` removes
        length = len(self.decode(ids))
        ends = list(accumulate(map(len, token_bytes)))
        spans = [(byte_owners[a], byte_owners[b - 1] + 1) if a < b else (0, 0) for a, b in pairwise([0, *ends])]
        return [(min(max(a - shift, 0), length), min(max(b - shift, 0), length)) for a, b in spans]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the index of the word, separated by white space, that each token of an encoded text belongs to.

        The last character of white space before a word belongs to it; tokens of other white space have index -1.
        """
        token_bytes = list(self._look_up(ids, self._bytes))
        byte_words: list[int] = []
        for number, (space, word) in enumerate(re.findall(r"(\s*)(\S*)", b"".join(token_bytes).decode("utf-8"))):
            if word:
                space, word = space[:-1], space[-1:] + word
            byte_words += [-1] * len(space.encode("utf-8")) + [number] * len(word.encode("utf-8"))
        # No token crosses a word boundary, so its last byte determines its word.
        return [byte_words[end - 1] if end else -1 for end in accumulate(map(len, token_bytes))]

    def to_tokenizers(self) -> tokenizers.Tokenizer:
        """Return a tokenizer of the `tokenizers` library that gives the same ids for text in NFC.

        If tokens were added, it differs in one point: it inserts a space after every added token.
        """
        copy = self._copy()
        copy.normalizer = LEADING_SPACE
        return copy

    def save(self, path: Path) -> None:
        """Write the tokenizer to a JSON file."""
        try:
            path.write_text(self._to_json(), encoding="utf-8", newline="\n")
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); give a writable path.") from error

    def _to_json(self) -> str:
        return self.to_tokenizers().to_str(pretty=True)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer written by `save`. `load_tokenizer` also reads SentencePiece tokenizers.

        Raises:
            UserError: If the file cannot be read, is damaged, or contains a tokenizer with other special ids or one
                that is not lossless.
        """
        return cls.parse(read_tokenizer_file(path), path)

    @classmethod
    def parse(cls, content: str, path: Path) -> "Tokenizer":
        """Parse the content of a file written by `save`."""
        try:
            check_subword_prefix(content)
            backend = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises no more specific class
            reason = one_line(error)
            raise UserError(f"{path} is damaged or not a tokenizer ({reason}); save or download it again.") from error
        cls._check_ids(backend.get_vocab(), path)
        state = json.loads(content)
        lossless = isinstance(backend.model, models.BPE) and same_normaliser(backend.normalizer, LEADING_SPACE)
        lossless &= not any(state.get(key) for key in ("post_processor", "truncation", "padding"))
        lossless &= all(map(_is_exact, backend.get_added_tokens_decoder().values()))
        tokenizer = cls(backend)
        if not lossless or not tokenizer._keeps(_PROBE):
            raise UserError(f"{path} contains a tokenizer that changes text; train it with regard.")
        return tokenizer

    def _keeps(self, text: str) -> bool:
        try:
            return self.decode(self.encode(text)) == text
        except Exception:  # the library raises no more specific class for rules that contradict each other
            return False

    @classmethod
    def _check_ids(cls, vocabulary: dict[str, int], path: Path) -> None:
        for index, token in enumerate(cls.FIXED_TOKENS):
            if vocabulary.get(token) != index:
                found = vocabulary.get(token, "missing")
                raise UserError(f"{path}: the id of {token} is {found}, but must be {index}; train it with regard.")
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise UserError(f"{path}: the ids have gaps or duplicates, but must be 0 to {len(vocabulary) - 1}.")

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that are equal for tokenizers that encode every text alike."""
        # Contains only what affects the encoding: new versions of the library may write further fields.
        state = json.loads(self._backend.to_str())
        model = state["model"]
        relevant = [self._tokens, model["merges"], model["ignore_merges"], state["pre_tokenizer"]]
        added = [token["content"] for token in state["added_tokens"]]
        relevant += [added] if added else []
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode("utf-8")).hexdigest()[:16]

    def _copy(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._backend.to_str())

    def _look_up(self, ids: Iterable[int], table: Sequence[_Value]) -> Iterator[_Value]:
        for index in ids:
            if not 0 <= index < len(table):
                raise ValueError(f"id {index} is not in the vocabulary of {len(table)} tokens")
            yield table[index]


def read_tokenizer_file(path: Path) -> str:
    """Read the file of a tokenizer."""
    try:
        return read_text(path)
    except UserError as error:
        raise UserError(f"{error}; give the path of a saved tokenizer.") from None


def check_subword_prefix(content: str) -> None:
    """Check that the JSON of a BPE tokenizer has no prefix of subwords: the library panics if a token is shorter.

    Raises:
        ValueError: The JSON is invalid, or there is such a prefix.
    """
    state = json.loads(content)
    model = state.get("model") if isinstance(state, dict) else None
    if isinstance(model, dict) and "merges" in model and model.get("continuing_subword_prefix"):
        raise ValueError("continuing_subword_prefix is not supported")


def check_surrogates(text: str, name: str) -> None:
    """Check that a text is valid Unicode, without lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"In {name}, there is a lone surrogate (U+{ord(text[error.start]):04X}) at position {error.start}, counted "
            f"from 0; it is half of a character, so the text must be decoded again from its source."
        ) from error


def _normalise(text: str, name: str) -> str:
    # The NFC normaliser of the library has older Unicode tables, which differ for some combining marks.
    check_surrogates(text, name)
    return unicodedata.normalize("NFC", text)


def _add_leading_space(text: str, name: str) -> str:
    return LEADING_SPACE.normalize_str(_normalise(text, name))


def is_unspaced(text: str) -> bool:
    """Return whether the first word of a text contains a character of a script without spaces between words."""
    return bool(text) and not _add_leading_space(text, "the text").startswith(" ")


def same_normaliser(one: normalizers.Normalizer | None, other: normalizers.Normalizer) -> bool:
    """Return whether two normalisers of the library have the same settings."""
    return one is not None and one.__getstate__() == other.__getstate__()


def _is_exact(token: tokenizers.AddedToken) -> bool:
    """Return whether an added token matches exactly its own characters, as those of `with_tokens` do."""
    return not (token.special or token.normalized or token.single_word or token.lstrip or token.rstrip)


def _count_words(lines: Iterable[str], splitter: pre_tokenizers.PreTokenizer) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        if line:
            text = _add_leading_space(line, f"line {number} of the training text")
            counts.update(word for word, _ in splitter.pre_tokenize_str(text))
    if not any(word.strip() for word in counts):
        raise UserError("The training text of the tokenizer is empty; it needs at least one line with a word.")
    return counts


def _choose_alphabet(word_counts: Counter[str], num_learned: int) -> set[str]:
    """Choose the most frequent characters, at most half of the tokens so that longer tokens can be learned as well.

    The space is always chosen, because the training text may be without spaces, but other text is not.
    """
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            counts[character] += count
    del counts[SPACE_MARK]  # encoded as bytes, so that the mark always stands for a space in `tokens`
    del counts[" "]
    return {" ", *_rank(counts)[: (num_learned - 1) // 2]}


def _choose_words(word_counts: Counter[str], alphabet: set[str], num_learned: int) -> list[str]:
    words = [word for word in _rank(word_counts) if word not in alphabet and SPACE_MARK not in word]
    return sorted(alphabet) + words[: num_learned - len(alphabet)]


def _learn_merges(
    word_counts: Counter[str], alphabet: set[str], num_learned: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn the tokens and merges of a BPE vocabulary.

    Words are split at characters outside the alphabet before training. The trainer itself would choose randomly between
    equally frequent characters, and would merge the neighbours of a character that it omits.
    """
    parts = (
        repeat("".join(run), count)
        for word, count in word_counts.items()
        for in_alphabet, run in groupby(word, key=alphabet.__contains__)
        if in_alphabet
    )
    learner = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_learned, min_frequency=MIN_COUNT, show_progress=False, initial_alphabet=[" "]
    )
    learner.train_from_iterator(chain.from_iterable(parts), trainer)
    vocabulary = learner.get_vocab()
    merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.__getitem__), merges


def _rank(counts: Counter[str]) -> list[str]:
    """Sort by descending count and then by name, so that the order of the training text does not matter."""
    frequent = [name for name, count in counts.items() if count >= MIN_COUNT]
    return sorted(frequent, key=lambda name: (-counts[name], name))
