"""Convert a regard BPE tokenizer to a SentencePiece model with the same tokenisation.

Only texts in NFC that do not contain "▁" are tokenised identically. A SentencePiece model adds a leading space
to all texts or to none, a regard tokenizer only in scripts with spaces between words.
"""

import json

from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.data.text.subwords import SPACE_MARK
from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError, import_optional

_BPE = 2
"""Value of SentencePiece's enum ModelType."""


def to_sentencepiece(tokenizer: Tokenizer, leading_space: bool = True) -> bytes:
    """Return the contents of a SentencePiece model file for texts with or without a leading space.

    SentencePiece merges the adjacent pair whose result has the highest score. Scored by merge order, this gives the
    same result as BPE merges: each token has a single merge, and no token crosses a word boundary.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.model
    if tokenizer.kind != "bpe":
        raise UserError("a word-level tokenizer cannot be converted to SentencePiece; train a model with BPE")
    import_optional("sentencepiece", "export")
    library = import_optional("sentencepiece.sentencepiece_model_pb2", "export")
    types = library.ModelProto.SentencePiece
    state = json.loads(tokenizer.to_tokenizers().to_str())
    merge_ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(state["model"]["merges"]):
        merge_ranks.setdefault(left + right, rank)
    added = {token["content"] for token in state["added_tokens"]}
    model = library.ModelProto()
    for index, token in enumerate(tokenizer.vocabulary):
        score = -float(merge_ranks.get(token, len(merge_ranks)))
        entry = model.pieces.add(piece=token.replace(" ", SPACE_MARK), score=score)
        if index == Tokenizer.UNK:
            entry.type = types.UNKNOWN
        elif index < len(Tokenizer.SPECIAL_TOKENS):
            entry.type = types.CONTROL
        elif index < len(Tokenizer.FIXED_TOKENS):
            entry.type = types.BYTE
        else:
            entry.type = types.USER_DEFINED if token in added else types.NORMAL
    trainer, normaliser = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback, trainer.vocab_size = _BPE, True, len(tokenizer)
    trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id = range(len(Tokenizer.SPECIAL_TOKENS))
    trainer.pad_piece, trainer.bos_piece, trainer.eos_piece, trainer.unk_piece = Tokenizer.SPECIAL_TOKENS
    normaliser.name = "identity"
    normaliser.add_dummy_prefix, normaliser.remove_extra_whitespaces = leading_space, False
    normaliser.escape_whitespaces = True
    return bytes(model.SerializeToString())
