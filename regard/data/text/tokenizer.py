"""Lossless tokenizer: text to token ids and back; `Vocabularies` are the tokenizers of both sides of a translator.

The `tokenizers` library learns and applies the subword units. This module fixes the order of the ids, prevents text
such as "<eos>" from being read as a special token, and decodes through bytes, so that any text survives a round trip.
"""

import copy
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import tokenizers
from tokenizers import Regex, models, normalizers

from regard.data.text.languages import script_conversion, script_converter
from regard.data.text.subwords import SPACE_MARK, WORD_PATTERNS, learn_subwords, split_words
from regard.errors import UserError, one_line
from regard.files import read_text

BATCH = 16_384
"""Number of texts encoded at once; the results of the library need much more memory than their ids."""

_PROBE = f"  <eos> <0x41>É{SPACE_MARK}\n "
"""A text that most tokenizers not made by this class would change."""

LANGUAGE_TOKEN = re.compile(r">>([^<>\s]+)<<")
"""A token before a source text that selects the target language of a model with several, such as ">>de<<"."""

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
"""Scripts without spaces between words."""
LEADING_SPACE = normalizers.Sequence(
    [normalizers.Prepend(" "), normalizers.Replace(Regex(rf"\A (?=[^\s{_UNSPACED}]*[{_UNSPACED}])"), "")]
)
"""Makes the first word of a text start with a space like all others, unless it is in a script without spaces.

A text that starts with a space gets another one, so that decoding can always remove a leading space.
"""

JOINT_FILE, SOURCE_FILE, TARGET_FILE = "tokenizer.json", "source.tokenizer.json", "target.tokenizer.json"
"""Names of the files of `Vocabularies` in a model folder."""

_Value = TypeVar("_Value")


class Tokenizer:
    """A vocabulary of tokens and the rules that split text into them.

    The ids are, in this order: four special tokens, 256 bytes, learned tokens, tokens added later. Characters outside
    the vocabulary are encoded as bytes, so that `<unk>` never occurs. For any text, `decode(encode(text))` is the text
    in Unicode normalisation form NFC. Special tokens cannot be written in text: "<eos>" is five characters.

    A language token such as ">>de<<" has no text: `encode` reads it at the start of a text, and `decode` omits it.

    Methods that take text raise a UserError for lone surrogates, methods that take ids a ValueError for unknown ids.
    """

    PAD: ClassVar[int] = 0
    BOS: ClassVar[int] = 1
    EOS: ClassVar[int] = 2
    UNK: ClassVar[int] = 3
    SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", "<unk>")
    FIXED_TOKENS: ClassVar[tuple[str, ...]] = (*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)))
    formats: ClassVar[dict[str, type["Tokenizer"]]] = {}
    """Subclasses by the beginning of the files that they write; each is added by the module that defines it."""

    _selected: int | None = None  # the language token of `with_language`
    _conversions = ("", "")  # of `with_script`

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer of the library, which should come from `train` or `load`."""
        self._backend = backend
        # This class adds the leading space itself: the normaliser of the library would add one after every added token.
        backend.normalizer = normalizers.Sequence([])
        vocabulary = backend.get_vocab()
        self._tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        fixed = [b"" for _ in self.SPECIAL_TOKENS] + [bytes([byte]) for byte in range(256)]
        learned = self._tokens[len(fixed) :]
        self._bytes = fixed + [b"" if LANGUAGE_TOKEN.fullmatch(token) else token.encode("utf-8") for token in learned]

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
        text = (
            _add_leading_space(line, f"line {number} of the training text")
            for number, line in enumerate(lines, start=1)
            if line
        )
        learned, merges = learn_subwords(text, num_learned, kind)
        model = models.BPE(
            {token: index for index, token in enumerate([*cls.FIXED_TOKENS, *learned])},
            merges,
            unk_token=cls.SPECIAL_TOKENS[cls.UNK],
            byte_fallback=True,
            ignore_merges=kind == "word",  # look up the complete word before spelling it
        )
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer = split_words(kind)
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

    @property
    def languages(self) -> list[str]:
        """Codes of the languages that have a token."""
        return [match[1] for token in self._tokens if (match := LANGUAGE_TOKEN.fullmatch(token))]

    def with_language(self, code: str) -> "Tokenizer":
        """Return a tokenizer that begins every text with the token of a language, unless the text begins with one."""
        token = f">>{code}<<"
        if token not in self._tokens:
            raise UserError(f"the vocabulary has no token {token}, which would select the target language")
        selected = copy.copy(self)
        selected._selected = self._tokens.index(token)
        return selected

    def with_script(self, before: str, after: str) -> "Tokenizer":
        """Return a tokenizer that converts texts: with `before` before encoding, and with `after` after decoding.

        Args:
            before: Name of a conversion between simplified and traditional Chinese, such as "t2s"; or "".
            after: The opposite conversion.
        """
        for conversion in filter(None, (before, after)):
            script_converter(conversion)  # reports a missing package
        converting = copy.copy(self)
        converting._conversions = before, after
        return converting

    def to_token_script(self, text: str) -> str:
        """Return a text in the script of the tokens; see `with_script`."""
        return self._convert(text)

    def _convert(self, text: str, decoded: bool = False) -> str:
        conversion = self._conversions[decoded]
        return script_converter(conversion)(text) if conversion else text

    def shares_ids(self, other: "Tokenizer") -> bool:
        """Return whether both are the same tokenizer, apart from the language token."""
        return self._tokens is other._tokens

    def _divide(self, text: str) -> tuple[list[int], str]:
        """Return the language token of a text, if it has one, and the remaining text in the script of the tokens."""
        text = self._convert(text)
        match = LANGUAGE_TOKEN.match(text)
        if match and match[0] in self._tokens:
            return [self._tokens.index(match[0])], text[match.end() :].removeprefix(" ")
        return [] if self._selected is None else [self._selected], text

    def find_token(self, token: str) -> int | None:
        """Return the id of an added token; None if the text is not a single token."""
        ids = self.encode_continuation(token)
        return ids[0] if len(ids) == 1 else None

    def _check_new(self, token: str, others: Sequence[str]) -> str:
        """Return a new token in normal form; raise a `UserError` if it cannot be added to the vocabulary."""
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
    def special_ids(self) -> dict[Literal["pad", "bos", "eos"], int]:
        """Ids of padding, of the token from which the decoder starts, and of END."""
        return {"pad": self.PAD, "bos": self.BOS, "eos": self.EOS}

    @property
    def kind(self) -> Literal["bpe", "word", "sentencepiece"]:
        """The `kind` that was passed to `train`; "sentencepiece" for tokenizers of imported models."""
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
        language, text = self._divide(text)
        return [*language, *self._backend.encode(_add_leading_space(text, "the text")).ids]

    def encode_continuation(self, text: str) -> list[int]:
        """Return the ids of a text that directly follows other text: no leading space is added."""
        return self._backend.encode(_normalise(self._convert(text), "the text")).ids

    def encode_phrase(self, text: str) -> list[int]:
        """Return the ids of a phrase inside a text: after a space, except in scripts without spaces."""
        return self.encode_continuation(text) if is_unspaced(text) else self.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts faster than one by one."""
        ids: list[list[int]] = []
        divided = [self._divide(text) for text in texts]
        for batch in _normalised_batches([text for _, text in divided]):
            ids.extend(encoding.ids for encoding in self._backend.encode_batch_fast(batch))
        return [language + encoded for (language, _), encoded in zip(divided, ids, strict=True)]

    def encode_words(self, texts: Sequence[str]) -> Iterator[list[tuple[int, ...]]]:
        """Yield the ids of each word of each text; no merge crosses the boundary of a word."""
        for batch in _normalised_batches(texts):
            for encoding in self._backend.encode_batch(batch):
                words = groupby(zip(encoding.word_ids, encoding.ids, strict=True), key=itemgetter(0))
                yield [tuple(index for _, index in word) for _, word in words]

    def symbols(self) -> list[list[int]]:
        """Return, for each token, the ids that merges build it from: its characters, or itself if it is never split."""
        learned = self._backend.get_vocab(with_added_tokens=False)
        single = range(len(self.FIXED_TOKENS)), range(len(learned), len(self))
        return [
            [index] if any(index in ids for ids in single) else [learned[character] for character in token]
            for index, token in enumerate(self._tokens)
        ]

    def merges(self) -> list[tuple[int, int, int]]:
        """Return the ids of the left and the right part and of the result of each merge, by rank."""
        ids, state = self._backend.get_vocab(), json.loads(self._backend.to_str())
        return [(ids[left], ids[right], ids[left + right]) for left, right in state["model"]["merges"]]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special tokens are skipped, invalid byte sequences give U+FFFD."""
        text = b"".join(self._look_up(ids, self._bytes)).decode("utf-8", errors="replace").removeprefix(" ")
        return self._convert(text, decoded=True)

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
        words = _word_of_each_byte(b"".join(token_bytes).decode("utf-8"))
        token_ends = accumulate(map(len, token_bytes))
        # No token crosses a word boundary, so its last byte determines its word. A language token has no bytes.
        return [words[end - 1] if end else -1 for end in token_ends]

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
        """Read a tokenizer of any class written by `save`.

        Raises:
            UserError: If the file cannot be read, is damaged, or contains a tokenizer with other special ids or one
                that is not lossless.
        """
        try:
            content = read_text(path)
        except UserError as error:
            raise UserError(f"{error}; give the path of a saved tokenizer.") from None
        starts = [start for start in cls.formats if content.startswith(start)]
        return (cls.formats[starts[0]] if starts else Tokenizer).parse(content, path)

    @classmethod
    def parse(cls, content: str, path: Path) -> "Tokenizer":
        """Parse the content of a file written by `save`; `path` is named in errors."""
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
        if added:  # otherwise the fingerprint is that of earlier versions, which could not add tokens
            relevant.append(added)
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode("utf-8")).hexdigest()[:16]

    def _copy(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._backend.to_str())

    def _look_up(self, ids: Iterable[int], table: Sequence[_Value]) -> Iterator[_Value]:
        for index in ids:
            if not 0 <= index < len(table):
                raise ValueError(f"id {index} is not in the vocabulary of {len(table)} tokens")
            yield table[index]


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizer of each side; the same object if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    def __repr__(self) -> str:
        if self.joint:
            return f"Vocabularies(joint, {self.source})"
        return f"Vocabularies({self.source}, {self.target})"

    @property
    def joint(self) -> bool:
        return self.source.shares_ids(self.target)

    def with_language(self, code: str) -> "Vocabularies":
        """Return vocabularies that begin every source with the token of a target language."""
        return Vocabularies(self.source.with_language(code), self.target)

    def save(self, folder: Path) -> None:
        if self.joint:
            self.source.save(folder / JOINT_FILE)
        else:
            self.source.save(folder / SOURCE_FILE)
            self.target.save(folder / TARGET_FILE)

    @classmethod
    def load(cls, folder: Path) -> "Vocabularies":
        if (folder / SOURCE_FILE).exists() or (folder / TARGET_FILE).exists():
            return cls(Tokenizer.load(folder / SOURCE_FILE), Tokenizer.load(folder / TARGET_FILE))
        joint = Tokenizer.load(folder / JOINT_FILE)
        return cls(joint, joint)

    def with_scripts(self, codes: tuple[str, str], own: tuple[str, str]) -> "Vocabularies":
        """Return vocabularies that convert text between the languages `codes` and the languages `own` of the tokens."""
        source, target = (
            side.with_script(script_conversion(code, of_tokens), script_conversion(of_tokens, code))
            for side, code, of_tokens in zip((self.source, self.target), codes, own, strict=True)
        )
        return Vocabularies(source, target)

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        """The tokens of each side by id."""
        return self.source.vocabulary, self.target.vocabulary

    def with_tokens(self, tokens: Sequence[str]) -> "Vocabularies":
        """Return vocabularies with additional tokens on both sides, which are never split."""
        source = self.source.with_tokens(tokens)
        return Vocabularies(source, source if self.joint else self.target.with_tokens(tokens))

    def missing(self, tokens: Sequence[str]) -> list[str]:
        """Return the tokens that the source vocabulary does not have."""
        return [token for token in tokens if self.source.find_token(token) is None]

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()}-{self.target.fingerprint()}"


def has_tokenizer(folder: Path) -> bool:
    """Return whether a model folder contains a tokenizer."""
    return any((folder / name).exists() for name in (JOINT_FILE, SOURCE_FILE, TARGET_FILE))


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


def _normalised_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), BATCH):
        batch = enumerate(texts[start : start + BATCH], start=start)
        yield [_add_leading_space(text, f"text {number} of the batch") for number, text in batch]


def _add_leading_space(text: str, name: str) -> str:
    return LEADING_SPACE.normalize_str(_normalise(text, name))


def _word_of_each_byte(text: str) -> list[int]:
    """Return the index of the word of each UTF-8 byte; -1 for white space that is not directly before a word."""
    words: list[int] = []
    for index, (space, word) in enumerate(re.findall(r"(\s*)(\S*)", text)):
        if word:
            space, word = space[:-1], space[-1:] + word
        words += [-1] * len(space.encode("utf-8")) + [index] * len(word.encode("utf-8"))
    return words


def is_unspaced(text: str) -> bool:
    """Return whether the first word of a text contains a character of a script without spaces between words."""
    return bool(text) and not _add_leading_space(text, "the text").startswith(" ")


def same_normaliser(one: normalizers.Normalizer | None, other: normalizers.Normalizer) -> bool:
    """Return whether two normalisers of the library have the same settings."""
    return one is not None and one.__getstate__() == other.__getstate__()


def _is_exact(token: tokenizers.AddedToken) -> bool:
    """Return whether an added token matches exactly its own characters, as those of `with_tokens` do."""
    return not (token.special or token.normalized or token.single_word or token.lstrip or token.rstrip)
