"""Our tokenizer as a model of SentencePiece, which cuts every text in normal form C alike but for "▁" in it."""

from __future__ import annotations

import json

from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.data.text.tokenizer import SPACE_MARK, Tokenizer
from regard.errors import UserError
from regard.runtime import import_optional

_BPE = 2
"""SentencePiece's number for models that merge the best pair first."""


def to_sentencepiece(tokenizer: Tokenizer) -> bytes:
    """The file of SentencePiece.

    It merges whatever neighbours make a piece, the earliest learned first, which is what our merges do: a word has no
    other way to come to a piece than the one in which it was learned, and no piece crosses a cut between words.

    Raises:
        UserError: SentencePiece cannot express the tokenizer, or is not installed.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.model
    if tokenizer.kind != "bpe":
        raise UserError("SentencePiece cannot spell a word that is no piece, as a tokenizer of words does; it has BPE")
    import_optional("sentencepiece", "export")
    library = import_optional("sentencepiece.sentencepiece_model_pb2", "export")
    kinds = library.ModelProto.SentencePiece
    state = json.loads(tokenizer.to_tokenizers().to_str())
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(state["model"]["merges"]):
        ranks.setdefault(left + right, rank)
    added = {token["content"] for token in state["added_tokens"]}
    model = library.ModelProto()
    for number, piece in enumerate(tokenizer.vocabulary):
        entry = model.pieces.add(piece=piece.replace(" ", SPACE_MARK), score=-float(ranks.get(piece, len(ranks))))
        if number == Tokenizer.UNK:
            entry.type = kinds.UNKNOWN
        elif number < len(Tokenizer.SPECIAL_TOKENS):
            entry.type = kinds.CONTROL
        elif number < len(Tokenizer.FIXED_TOKENS):
            entry.type = kinds.BYTE
        else:
            entry.type = kinds.USER_DEFINED if piece in added else kinds.NORMAL
    trainer, normaliser = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback, trainer.vocab_size = _BPE, True, len(tokenizer)
    trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id = range(len(Tokenizer.SPECIAL_TOKENS))
    trainer.pad_piece, trainer.bos_piece, trainer.eos_piece, trainer.unk_piece = Tokenizer.SPECIAL_TOKENS
    normaliser.name = "identity"
    normaliser.add_dummy_prefix, normaliser.remove_extra_whitespaces, normaliser.escape_whitespaces = True, False, True
    return bytes(model.SerializeToString())
