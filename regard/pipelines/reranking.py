"""Who may choose among the results of a model that writes all tokens at once."""

from __future__ import annotations

from pathlib import Path

from regard.errors import UserError
from regard.models.folder import check_input_type, find_model_folder, model_kind, read_config
from regard.models.transformer import TransformerConfig


def check_reranker(path: Path) -> None:
    """Does nothing where a folder, or a run, holds a model that writes token by token; reads no weights.

    Raises:
        UserError: there is no such folder, or its model is of another kind.
    """
    try:
        folder = find_model_folder(path)
        check_input_type(folder, "text")
        kind = model_kind(folder, read_config(folder))
    except UserError as error:
        raise UserError(f"rerank: {error}") from None
    if kind != TransformerConfig.model_fields["kind"].default:
        raise UserError(f"rerank: {path} writes all tokens at once; a model that writes token by token can judge")
