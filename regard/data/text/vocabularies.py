"""The tokenizers of both sides of a translation model, and their files in a model folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.text.sentencepiece import SENTENCEPIECE_PREFIX, SentencePieceTokenizer
from regard.data.text.tokenizer import Tokenizer, read_tokenizer_file

JOINT_FILE, SOURCE_FILE, TARGET_FILE = "tokenizer.json", "source.tokenizer.json", "target.tokenizer.json"


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
        return self.source is self.target

    def save(self, folder: Path) -> None:
        if self.joint:
            self.source.save(folder / JOINT_FILE)
        else:
            self.source.save(folder / SOURCE_FILE)
            self.target.save(folder / TARGET_FILE)

    @classmethod
    def load(cls, folder: Path) -> "Vocabularies":
        if (folder / SOURCE_FILE).exists() or (folder / TARGET_FILE).exists():
            return cls(load_tokenizer(folder / SOURCE_FILE), load_tokenizer(folder / TARGET_FILE))
        joint = load_tokenizer(folder / JOINT_FILE)
        return cls(joint, joint)

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        """The tokens of each side by id."""
        return self.source.vocabulary, self.target.vocabulary

    def with_tokens(self, tokens: Sequence[str]) -> "Vocabularies":
        """Return vocabularies with additional tokens on both sides, which are never split."""
        source = self.source.with_tokens(tokens)
        return Vocabularies(source, source if self.joint else self.target.with_tokens(tokens))

    def fingerprint(self) -> str:
        return f"{self.source.fingerprint()}-{self.target.fingerprint()}"


def has_tokenizer(folder: Path) -> bool:
    """Return whether a model folder contains a tokenizer."""
    return any((folder / name).exists() for name in (JOINT_FILE, SOURCE_FILE, TARGET_FILE))


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer of any class written by `Tokenizer.save`."""
    content = read_tokenizer_file(path)
    kind = SentencePieceTokenizer if content.startswith(SENTENCEPIECE_PREFIX) else Tokenizer
    return kind.parse(content, path)
