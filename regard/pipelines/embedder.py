"""`Embedder`: sentence embeddings of an encoder such as BERT; and files of embeddings.

Shapes: S tokens, W width.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from regard.data.text.tokenizer import JOINT_FILE
from regard.data.text.wordpiece import WordPieceTokenizer
from regard.decoding.generator import BATCH_TOKENS
from regard.errors import UserError
from regard.files import replace_file
from regard.masks import pad_batch
from regard.models.bert import Bert
from regard.models.card import describe_model
from regard.models.folder import check_input_type, find_model_folder, load_model, save_model
from regard.pipelines.sentence_translator import check_texts, map_batches
from regard.pipelines.translator import WINDOW, Translator

Pooling = Literal["mean", "none"]
Arrays = dict[str, NDArray[Any]]


class Embedder:
    """Computes an embedding of each text, or of each of its tokens."""

    def __init__(self, model: Bert, tokenizer: WordPieceTokenizer) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer

    def __repr__(self) -> str:
        return f"Embedder({describe_model(self.model)}, {len(self.tokenizer):,} tokens)"

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> "Embedder":
        """Load a model folder of kind bert."""
        folder = find_model_folder(Path(path))
        check_input_type(folder, "sentences")
        model, _ = load_model(folder, device)
        tokenizer = WordPieceTokenizer.load(folder / JOINT_FILE)
        if len(tokenizer) > model.config.vocab:
            raise UserError(
                f"{folder / JOINT_FILE} has {len(tokenizer)} tokens, but the embedding has {model.config.vocab} rows"
            )
        return cls(model, tokenizer)

    def save(self, folder: Path, metadata: dict[str, Any] | None = None) -> None:
        """Write config.json, model.safetensors and the tokenizer to an existing folder."""
        self.tokenizer.save(folder / JOINT_FILE)
        save_model(folder, self.model, metadata or {})

    @torch.no_grad()
    def embed(self, texts: Sequence[str], pool: Pooling = "mean", first: int = 1) -> list[Tensor]:
        """Return one vector per text, (W,), pooled as the model does; or with "none" one per token, (S, W).

        Tokens include the special ones. `first` is the number of the first text, for errors.
        """
        config, device = self.model.config, next(self.model.parameters()).device
        rows = self.tokenizer.encode_batch(check_texts(texts, first), first)
        for number, tokens in enumerate(rows, first):
            if len(tokens) > config.max_length:
                raise UserError(
                    f"sentence {number} has {len(tokens)} tokens, but this model's positions end at {config.max_length}"
                )
            if not tokens:
                raise UserError(f"sentence {number} is empty, and this tokenizer adds no special tokens")

        def embed(batch: Sequence[int]) -> list[Tensor]:
            padded, layout = pad_batch([rows[i] for i in batch], config.pad, device)
            outputs = self.model(padded, layout)
            if pool == "mean":
                return [vector.clone() for vector in self.model.pool(outputs, layout)]
            return [output[: len(rows[i])].clone() for i, output in zip(batch, outputs, strict=True)]

        return map_batches(embed, rows, BATCH_TOKENS)


def check_embedding_file(path: Path, pool: str) -> Pooling:
    """Check before the work that the embeddings can be written; return the pooling with its type."""
    if pool not in ("mean", "none"):
        raise UserError(f"--pool must be mean (one vector per line) or none (one per token), not {pool!r}")
    if path.suffix not in (".npy", ".safetensors"):
        raise UserError(f"{path}: the name must end in .npy or .safetensors")
    if pool == "none" and path.suffix == ".npy":
        raise UserError(f"{path}: vectors of tokens need two arrays, but .npy holds one; use .safetensors")
    return cast(Pooling, pool)


def embed_lines(
    embedder: Translator | Embedder,
    lines: Iterable[str],
    pool: Pooling = "mean",
    on_progress: Callable[[int], object] | None = None,
) -> Arrays:
    """Return the embeddings of every line as float32 arrays.

    With "mean" the array is `embeddings`, (lines, W). With "none" the arrays are `vectors`, (tokens, W), and `offsets`,
    (lines + 1,): the vectors of line i are vectors[offsets[i] : offsets[i + 1]]. An empty line has the vector of END,
    or the vectors of its special tokens. `on_progress` is called with the number of new lines after each window.
    """
    width = embedder.model.config.width
    parts = [np.empty((0, width), np.float32)]
    lengths: list[int] = []  # number of tokens of each line; empty with "mean"
    num_lines = 0
    lines = iter(lines)
    while window := list(islice(lines, WINDOW)):
        embeddings = embedder.embed(window, pool, first=num_lines + 1)
        num_lines += len(window)
        if pool == "mean":
            joined = torch.stack(embeddings)
        else:
            joined = torch.cat(embeddings)
            lengths += map(len, embeddings)
        parts.append(joined.float().cpu().numpy())
        if on_progress is not None:
            on_progress(len(window))
    if pool == "mean":
        return {"embeddings": np.concatenate(parts)}
    return {"vectors": np.concatenate(parts), "offsets": np.cumsum([0, *lengths], dtype=np.int64)}


def save_arrays(arrays: Arrays, path: Path) -> None:
    """Write a .npy file of the only array, or a .safetensors file, atomically."""
    with replace_file(path) as temporary:
        with temporary.open("xb") as file:
            if path.suffix == ".npy":
                (array,) = arrays.values()
                np.save(file, array)
        if path.suffix == ".safetensors":
            mode = temporary.stat().st_mode
            try:
                safetensors.numpy.save_file(arrays, temporary)
            except SafetensorError as error:
                raise UserError(f"{path}: cannot be written ({error})") from None
            temporary.chmod(mode)  # safetensors makes files readable by their owner only
