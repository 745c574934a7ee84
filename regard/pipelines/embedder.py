"""`Embedder`: the vectors of sentences from an encoder such as BERT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard.data.text.vocabularies import JOINT
from regard.data.text.wordpiece import WordPieceTokenizer
from regard.decoding.generator import BATCH_TOKENS
from regard.decoding.stepper import pad_batch
from regard.errors import UserError
from regard.models.bert import Bert
from regard.models.folder import check_input_type, find_model_folder, load_model, save_model
from regard.pipelines.translator import batches_by_tokens, list_texts


class Embedder:
    """Gives each text the vector by which it is compared with others, or each of its tokens one."""

    def __init__(self, model: Bert, pieces: WordPieceTokenizer) -> None:
        self.model, self.pieces = model.eval(), pieces

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Embedder:
        """Loads a model folder of the kind encoder.

        Raises:
            UserError: a file is missing or damaged, the files do not belong together, or it holds another model.
        """
        folder = find_model_folder(Path(path))
        check_input_type(folder, "sentences")
        model, _ = load_model(folder, device)
        pieces = WordPieceTokenizer.load(folder / JOINT)
        if len(pieces) > model.config.vocab:
            raise UserError(f"{folder / JOINT} has {len(pieces)} pieces, and the model {model.config.vocab} rows")
        return cls(model, pieces)

    def save(self, folder: Path, about: dict[str, Any] | None = None) -> None:
        """Writes config.json, model.safetensors and the tokenizer into an existing folder."""
        self.pieces.save(folder / JOINT)
        save_model(folder, self.model, about or {})

    @torch.no_grad()
    def embed(self, texts: Sequence[str], pool: Literal["mean", "none"] = "mean", first: int = 1) -> list[Tensor]:
        """One vector a text, (W,), as the model pools; or with "none" one a token, (S, W), specials included.

        `first` is the number of the first text, for errors.

        Raises:
            UserError: a text is too long for the model's positions, or no text.
        """
        config, device = self.model.config, self.model.pieces.device
        encoded = self.pieces.encode_batch(list_texts(texts, first), first)
        for number, tokens in enumerate(encoded, first):
            if len(tokens) > config.max_length:
                raise UserError(f"sentence {number} has {len(tokens)} tokens, and positions end at {config.max_length}")
            if not tokens:
                raise UserError(f"sentence {number} is empty, and this tokenizer sets nothing before or behind it")
        vectors: list[Tensor] = [torch.empty(0)] * len(encoded)
        for batch in batches_by_tokens(range(len(encoded)), encoded, BATCH_TOKENS):
            rows, layout = pad_batch([encoded[i] for i in batch], config.pad, device)
            x = self.model(rows, layout)
            found = self.model.pool(x, layout) if pool == "mean" else x
            for i, row in zip(batch, found, strict=True):
                vectors[i] = row.clone() if pool == "mean" else row[: len(encoded[i])].clone()
        return vectors
