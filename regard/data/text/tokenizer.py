"""Text to ids and back, without loss.

The pieces are learned and applied by the `tokenizers` library. This module fixes the order of the ids, keeps the names
of the special pieces out of reach of the text, and decodes through bytes, so that every text comes back as it was.
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

SPACE_MARK = "▁"
"""How a space is shown. The vocabulary itself holds plain spaces, so a text with this character needs no escape."""

MIN_COUNT = 2
"""What was seen less often (a character, a pair to merge, a word) gets no piece of its own."""

BATCH = 16_384
"""Texts encoded at once: the library's results take far more memory than the ids kept of them."""

# A text is cut into words, and no piece crosses a cut. That letters and symbols never share a word is also what keeps
# "<eos>" in a text from being looked up as a whole. The length of a word is limited, because the trainer's time grows
# with its square.
_COMMON_WORDS = (
    r" ?[\p{L}\p{M}&&[^\p{Han}]]{1,200}",  # letters with their marks
    r" ?\p{N}",  # one digit
    r" ?[^\s\p{L}\p{M}\p{N}\p{Han}]{1,200}",  # symbols
    r" {1,200}(?= )",  # of several spaces, all but the last: that one belongs to what follows
    r" ",
    r"[^\S ]{1,200}",  # other white space
)
WORDS = {
    "bpe": "|".join((r" ?\p{Han}{1,200}", *_COMMON_WORDS)),
    # No space is glued to a Han character, or each would be two words: with it and without.
    "word": "|".join((r"\p{Han}", *_COMMON_WORDS)),
}

# A text that a file which is not one of ours would change or take for special pieces.
_PROBE = f"  <eos> <0x41>É{SPACE_MARK}\n "

_PREPENDING = {"type": "Prepend", "prepend": " "}

FOREIGN = '{"sentencepiece":'
"""How the file of a tokenizer begins that came with a model of another library."""

_Entry = TypeVar("_Entry")


class Tokenizer:
    """A vocabulary of pieces and the rule that cuts a text into them.

    The ids are, in this order: four specials, the 256 bytes, the learned pieces, those added later. A character that
    is no piece is spelled in bytes, so `<unk>` never comes out of a text. For every text, `decode(encode(text))` is the
    text in Unicode normal form C. Text is data: "<eos>" in a text is five characters, never the special piece.
    """

    PAD: ClassVar[int] = 0
    BOS: ClassVar[int] = 1
    EOS: ClassVar[int] = 2
    UNK: ClassVar[int] = 3
    SPECIAL_TOKENS: ClassVar[tuple[str, ...]] = ("<pad>", "<bos>", "<eos>", "<unk>")
    FIXED_TOKENS: ClassVar[tuple[str, ...]] = (*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)))

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer of the library; `train` and `load` make the ones that keep this class's promises."""
        self._backend = backend
        # The library would put the space before every part of a text that stands between two added pieces.
        backend.normalizer = normalizers.Sequence([])
        vocabulary = backend.get_vocab()
        self._pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        fixed = [b"" for _ in self.SPECIAL_TOKENS] + [bytes([byte]) for byte in range(256)]
        self._bytes = fixed + [piece.encode("utf-8") for piece in self._pieces[len(fixed) :]]

    @classmethod
    def train(cls, lines: Iterable[str], size: int, kind: Literal["bpe", "word"] = "bpe") -> "Tokenizer":
        """Learn a vocabulary of at most `size` pieces from text; the same lines always give the same one.

        Args:
            lines: The text, read once; what is held in memory are its distinct words.
            size: The size of the vocabulary, with the specials and the bytes.
            kind: "bpe" merges frequent neighbours into pieces; "word" takes frequent words whole, every Han character
                being a word, and spells the others in characters.

        Raises:
            UserError: If `size` leaves no room for a learned piece, if the text is empty or holds a lone surrogate, or
                if `kind` is neither of the two.
        """
        if kind not in WORDS:
            raise UserError(f'The tokenizer kind "{kind}" is not known; it must be "bpe" or "word".')
        room = size - len(cls.FIXED_TOKENS)
        if room < 1:
            raise UserError(
                f"A vocabulary of size {size} is too small: {len(cls.SPECIAL_TOKENS)} specials, 256 bytes and at least "
                f"one learned piece need {len(cls.FIXED_TOKENS) + 1}."
            )
        splitter = pre_tokenizers.Split(Regex(WORDS[kind]), "isolated")
        words = _count_words(lines, splitter)
        alphabet = _choose_alphabet(words, room)
        if kind == "bpe":
            learned, merges = _learn_merges(words, alphabet, room)
        else:
            learned, merges = _choose_words(words, alphabet, room), []
        backend = tokenizers.Tokenizer(
            models.BPE(
                {piece: index for index, piece in enumerate([*cls.FIXED_TOKENS, *learned])},
                merges,
                unk_token=cls.SPECIAL_TOKENS[cls.UNK],
                byte_fallback=True,
                ignore_merges=kind == "word",  # look a word up whole before spelling it
            )
        )
        backend.pre_tokenizer = splitter
        return cls(backend)

    def with_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """A tokenizer with further pieces, which are never split, wherever in a text they stand.

        A text that holds none of them is cut as before. A space at a token's beginning belongs to it.

        Raises:
            UserError: If a token is blank, holds a control character or "▁", is given twice, or is one piece already.
        """
        backend = self._copy()
        new: list[str] = []
        for token in tokens:
            new.append(self._check_new(token, new))
        backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in new])
        return Tokenizer(backend)

    def _check_new(self, token: str, others: Sequence[str]) -> str:
        """The token in normal form, if it can be added."""
        text, name = _normalise(token, f"the token {token!r}"), f"The new token {token!r}"
        if not text.strip():
            raise UserError(f"{name} is blank; a token needs at least one visible character.")
        if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in text):
            raise UserError(f"{name} holds a control character or a line end; leave it away.")
        if SPACE_MARK in text:
            raise UserError(f'{name} holds "{SPACE_MARK}", which stands for a space; write the space itself.')
        if text in others:
            raise UserError(f"{name} is given twice; give it once.")
        whole = len(self.encode_continuation(text)) == 1 or len(self.encode(text)) == 1
        if whole or text in self._backend.get_vocab():
            raise UserError(f"{name} is a piece of this vocabulary already; leave it away.")
        return text

    @property
    def kind(self) -> Literal["bpe", "word"]:
        """How it was learned."""
        return "word" if json.loads(self._backend.to_str())["model"]["ignore_merges"] else "bpe"

    @property
    def vocabulary(self) -> list[str]:
        """The pieces in the order of their ids, as the file holds them: with plain spaces."""
        return list(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Turn a text into ids, without `<bos>` and `<eos>`.

        Raises:
            UserError: If the text holds a lone surrogate.
        """
        return self._backend.encode(_after_space(_normalise(text, "the text"))).ids

    def encode_continuation(self, text: str) -> list[int]:
        """Turn a text into ids as it stands within a longer one, close to what precedes it: no space is added.

        Raises:
            UserError: If the text holds a lone surrogate.
        """
        return self._backend.encode(_normalise(text, "the text")).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Turn many texts into ids, faster than one by one.

        Raises:
            UserError: If a text holds a lone surrogate.
        """
        ids: list[list[int]] = []
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            normalised = [
                _after_space(_normalise(text, f"text {number} of the batch"))
                for number, text in enumerate(batch, start=start)
            ]
            ids.extend(encoding.ids for encoding in self._backend.encode_batch_fast(normalised))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into the text they stand for; specials are skipped, bytes that form no character give U+FFFD.

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        return b"".join(self._look_up(ids, self._bytes)).decode("utf-8", errors="replace").removeprefix(" ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Name the piece of every id, for display: a space is shown as "▁".

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        return [piece.replace(" ", SPACE_MARK) for piece in self._look_up(ids, self._pieces)]

    def char_spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        """Say from which character of the decoded text up to which each piece goes; the bytes of one share its place.

        Where bytes form no character, the places of what follows may be too great, but never beyond the text.

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        ids = list(ids)
        spelled = list(self._look_up(ids, self._bytes))
        characters = b"".join(spelled).decode("utf-8", errors="surrogateescape")
        owners = [i for i, c in enumerate(characters) for _ in c.encode("utf-8", errors="surrogateescape")]
        first = 1 if characters.startswith(" ") else 0  # the space that decoding takes away
        longest = len(self.decode(ids))
        ends = list(accumulate(map(len, spelled)))
        places = [(owners[a] - first, owners[b - 1] + 1 - first) if a < b else (0, 0) for a, b in pairwise([0, *ends])]
        return [(min(max(a, 0), longest), min(max(b, 0), longest)) for a, b in places]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Number, from 0, the white-space separated word that each piece of an encoded text belongs to.

        The character of white space right before a word counts to it; a piece of other white space gets -1.

        Raises:
            ValueError: If an id is not in the vocabulary.
        """
        spelled = list(self._look_up(ids, self._bytes))
        owners: list[int] = []  # of each byte
        for number, (space, word) in enumerate(re.findall(r"(\s*)(\S*)", b"".join(spelled).decode("utf-8"))):
            if word:
                space, word = space[:-1], space[-1:] + word
            owners += [-1] * len(space.encode("utf-8")) + [number] * len(word.encode("utf-8"))
        # No piece goes on beyond a word.
        return [owners[end - 1] if end else -1 for end in accumulate(map(len, spelled))]

    def to_tokenizers(self) -> tokenizers.Tokenizer:
        """Give a copy as the `tokenizers` library has it, which cuts a text in normal form C like this one.

        Where pieces were added later, it puts a space before every part of a text between two of them.
        """
        whole = self._copy()
        whole.normalizer = normalizers.Prepend(" ")
        return whole

    def save(self, path: Path) -> None:
        """Write the tokenizer to a JSON file.

        Raises:
            UserError: If the file cannot be written.
        """
        try:
            path.write_text(self.to_tokenizers().to_str(pretty=True), encoding="utf-8", newline="\n")
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); give a writable path.") from error

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer that `save` wrote, be it one that was learned here or one of SentencePiece.

        Raises:
            UserError: If the file is missing or unreadable, is damaged, or holds a tokenizer that this class did not
                make: other special ids, or one that takes text for special pieces or changes it.
        """
        try:
            content = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); give the path of a saved tokenizer.") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text; give the path of a saved tokenizer.") from error
        if content.startswith(FOREIGN):
            from regard.data.text.sentencepiece import SentencePieceTokenizer

            return SentencePieceTokenizer.parse(content, path)
        try:
            backend = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises no narrower class
            raise UserError(f"{path} is damaged or not a tokenizer ({error}); save or fetch it again.") from error
        vocabulary = backend.get_vocab()
        for index, piece in enumerate(cls.FIXED_TOKENS):
            if vocabulary.get(piece) != index:
                found = vocabulary.get(piece, "missing")
                raise UserError(f"{path}: the id of {piece} is {found}, but must be {index}; train it with regard.")
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise UserError(f"{path}: the ids have gaps or doubles, but must run from 0 to {len(vocabulary) - 1}.")
        normaliser = json.loads(content)["normalizer"]
        tokenizer = cls(backend)
        if normaliser != _PREPENDING or not all(map(_is_ours, backend.get_added_tokens_decoder().values())):
            raise UserError(f"{path} holds a tokenizer that does not keep the text as it is; train it with regard.")
        if tokenizer.decode(tokenizer.encode(_PROBE)) != _PROBE:
            raise UserError(f"{path} holds a tokenizer that does not keep the text as it is; train it with regard.")
        return tokenizer

    def fingerprint(self) -> str:
        """Give 16 hexadecimal digits that are equal for tokenizers that cut every text alike."""
        # Only what decides about the pieces goes in: the library may write further fields in its next version.
        state = json.loads(self._backend.to_str())
        model = state["model"]
        decisive = [self._pieces, model["merges"], model["ignore_merges"], state["pre_tokenizer"]]
        added = [token["content"] for token in state["added_tokens"]]
        decisive += [added] if added else []
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode("utf-8")).hexdigest()[:16]

    def _copy(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._backend.to_str())

    def _look_up(self, ids: Iterable[int], table: Sequence[_Entry]) -> Iterator[_Entry]:
        for index in ids:
            if not 0 <= index < len(table):
                raise ValueError(f"id {index} is not in the vocabulary of {len(table)} pieces")
            yield table[index]


def check_surrogates(text: str, name: str) -> None:
    """Does nothing to Unicode text.

    Raises:
        UserError: it is none; says where.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"In {name}, a lone surrogate (U+{ord(text[error.start]):04X}) stands at position {error.start}, counted "
            f"from 0; it is half of a character, so the text must be decoded anew from its source."
        ) from error


def _normalise(text: str, name: str) -> str:
    """Bring a text to normal form C and refuse what is no Unicode text.

    Python does this and not the library's normaliser, whose Unicode tables are older and differ for some marks.
    """
    check_surrogates(text, name)
    return unicodedata.normalize("NFC", text)


def _after_space(text: str) -> str:
    """The text as it is cut: its first word begins with a space like all others."""
    return f" {text}" if text else text


def _is_ours(token: tokenizers.AddedToken) -> bool:
    """Whether an added piece takes exactly its own characters out of a text, as those of `extended` do."""
    return not (token.special or token.normalized or token.single_word or token.lstrip or token.rstrip)


def _count_words(lines: Iterable[str], splitter: pre_tokenizers.PreTokenizer) -> Counter[str]:
    words: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        if line:
            text = _after_space(_normalise(line, f"line {number} of the training text"))
            words.update(word for word, _ in splitter.pre_tokenize_str(text))
    if not any(word.strip() for word in words):
        raise UserError("The training text of the tokenizer is empty; it needs at least one line with a word.")
    return words


def _choose_alphabet(words: Counter[str], room: int) -> set[str]:
    """Choose the characters that become pieces, the most frequent first.

    They get at most half the room, so that a script of thousands of characters leaves some for longer pieces.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    # In bytes, so that in `pieces` the mark always stands for a space.
    del counts[SPACE_MARK]
    return set(_rank(counts)[: (room + 1) // 2])


def _choose_words(words: Counter[str], alphabet: set[str], room: int) -> list[str]:
    spelled = sorted(alphabet)
    whole = [word for word in _rank(words) if word not in alphabet and SPACE_MARK not in word]
    return spelled + whole[: room - len(spelled)]


def _learn_merges(words: Counter[str], alphabet: set[str], room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn the pieces of a BPE vocabulary, in the order in which they were found, and the merges that make them.

    The trainer is given words of the alphabet only: a word is cut where it has other characters. Left to limit the
    alphabet itself, the trainer would choose between equally frequent characters by chance, and would merge the two
    neighbours of a character that it leaves out.
    """
    parts = (
        repeat("".join(run), count)
        for word, count in words.items()
        for known, run in groupby(word, key=alphabet.__contains__)
        if known
    )
    learner = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=room, min_frequency=MIN_COUNT, show_progress=False)
    learner.train_from_iterator(chain.from_iterable(parts), trainer)
    vocabulary = learner.get_vocab()
    merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.__getitem__), merges


def _rank(counts: Counter[str]) -> list[str]:
    """Sort by falling count, and equal counts by name, so that the order never depends on the order of the text."""
    frequent = [name for name, count in counts.items() if count >= MIN_COUNT]
    return sorted(frequent, key=lambda name: (-counts[name], name))
