"""Attention of image models over patches: of a ViT over the whole image, of a Swin within windows.

Shapes: B images, L layers, H heads, N tokens of a grid in row-major order, n windows per image, T tokens of a window.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import UserError
from regard.inspection.maps import layer_weights, rollout
from regard.inspection.probe import AttentionRecord
from regard.models.swin import Swin, Windows
from regard.models.vit import ViT

Floats = npt.NDArray[np.floating]
Grid = tuple[int, int]
"""Rows and columns; or the row and column of one patch."""


@dataclass(frozen=True)
class GlobalAttention:
    """Attention of the class token, of the mean over patches, or of one patch over a whole image.

    Attributes:
        rollout: Rollout up to each layer, (L, N).
        heads: Attention weights of each head of each layer, (L, H, N).
    """

    rollout: Floats
    heads: Floats


@dataclass(frozen=True)
class WindowAttention:
    """Attention of one layer of a Swin.

    Attributes:
        stage: Index of the stage. Each stage merges 2 × 2 tokens of the previous one.
        grid: Rows and columns of the stage's tokens.
        heads: Attention that each token received from its window, or that one token paid to the others, (H, N).
        patch: Row and column of that token, None for attention received.
        reach: First row and column that it may attend to, and last row and column.
    """

    stage: int
    layer: int
    grid: Grid
    heads: Floats
    patch: Grid | None = None
    reach: tuple[int, int, int, int] | None = None


def global_attention(model: ViT, records: Mapping[str, AttentionRecord], patch: Grid | None = None) -> GlobalAttention:
    """Return the attention of one patch, or of the class token (or the mean over patches) without one."""
    layers = layer_weights(records)
    prefix, columns = model.config.prefix_tokens, model.config.grid[1]
    check_patch(patch, model.config.grid)

    def select_query(weights: Floats) -> Floats:
        """Select one query and the patch keys, (…, T, T) to (…, N)."""
        if patch is not None:
            row = weights[..., prefix + patch[0] * columns + patch[1], :]
        elif model.config.pooling == "class":
            row = weights[..., 0, :]
        else:
            row = weights[..., prefix:, :].mean(-2)
        return row[..., prefix:]

    up_to_layer = [select_query(rollout(layers[: layer + 1]))[0] for layer in range(len(layers))]
    return GlobalAttention(np.stack(up_to_layer), np.stack([select_query(weights)[0] for weights in layers]))


def window_attention(
    model: Swin, records: Mapping[str, AttentionRecord], image: Grid, patch: Grid | None = None
) -> list[WindowAttention]:
    """Return the attention of every layer for one image, first layer first.

    Args:
        records: What `probe` recorded of all its attention modules.
        image: Height and width in pixels.
        patch: Row and column of a first-stage token whose attention is returned. Defaults to the attention that each
            token received.
    """
    rows, columns = patch_grid(model, image)
    check_patch(patch, (rows, columns))
    windows_by_name = model.windows(image)
    result = []
    for stage, depth in enumerate(model.config.layers):
        if stage:  # patch merging halves the grid, rounding up
            rows, columns = -(-rows // 2), -(-columns // 2)
        for layer in range(depth):
            name = f"stages.{stage}.blocks.{layer}.attention"
            weights, windows = records[name].weights.float().cpu().numpy(), windows_by_name[name]
            if patch is None:
                result.append(WindowAttention(stage, layer, (rows, columns), attention_received(weights, windows)))
                continue
            row, column = patch[0] // 2**stage, patch[1] // 2**stage  # the token that contains the patch
            token = row * columns + column
            heads = attention_from(token, weights, windows)
            reach = reachable_region(token, windows, columns)
            result.append(WindowAttention(stage, layer, (rows, columns), heads, (row, column), reach))
    return result


def patch_grid(model: ViT | Swin, image: Grid) -> Grid:
    """Return the rows and columns of patches of an image with this height and width."""
    rows, columns = (-(-size // patch) for size, patch in zip(image, model.config.patch, strict=True))
    return rows, columns


def check_patch(patch: Grid | None, grid: Grid) -> None:
    """Raise a `UserError` if a patch is outside a grid."""
    if patch is not None and not all(0 <= index < size for index, size in zip(patch, grid, strict=True)):
        raise UserError(
            f"patch {patch[0]},{patch[1]} is outside this image; rows go from 0 to {grid[0] - 1}, "
            f"columns from 0 to {grid[1] - 1}"
        )


def windows_to_grid(weights: Floats, windows: Windows) -> Floats:
    """Scatter window attention weights back to the grid: (B · n, H, T, T) to (B, H, N, N).

    Tokens of different windows get weight 0. `Swin.windows` returns the windows of each attention module.
    """
    n = len(windows.tokens)
    window_of, index_of = _window_indices(windows)
    if len(weights) % n:
        raise ValueError(f"{len(weights)} windows are not a multiple of the {n} windows of an image")
    by_image = weights.reshape(-1, n, *weights.shape[1:])
    full = np.zeros((len(by_image), weights.shape[1], len(window_of), len(window_of)), weights.dtype)
    for window in range(n):
        tokens = np.flatnonzero(window_of == window)
        inside = index_of[tokens]
        full[:, :, tokens[:, None], tokens] = by_image[:, window][:, :, inside[:, None], inside]
    return full


def attention_from(token: int, weights: Floats, windows: Windows) -> Floats:
    """Return the attention of one token to all tokens of the grid, (H, N), from the weights of one image, (n, H, T, T).

    Equals one row of `windows_to_grid`, without materialising the (N, N) matrix.
    """
    window_of, index_of = _window_indices(windows)
    same_window = window_of == window_of[token]
    full = np.zeros((weights.shape[1], len(window_of)), weights.dtype)
    full[:, same_window] = weights[window_of[token], :, index_of[token]][:, index_of[same_window]]
    return full


def attention_received(weights: Floats, windows: Windows) -> Floats:
    """Return the attention that each token receives from the tokens of its window.

    Args:
        weights: Attention weights of n windows, (n, H, T, T), queries before keys.
        windows: How the N tokens of the grid are arranged in the windows.

    Returns:
        The sum of the weights over the queries, (H, N); 1 under uniform attention. Padding does not count as a query.
    """
    n, T = windows.tokens.shape
    cells = windows.cells.cpu().numpy()
    holds_token = np.zeros(n * T, weights.dtype)  # 1 for cells with a token, 0 for those that pad the grid
    holds_token[cells] = 1
    received: Floats = np.einsum("nhqk,nq->hnk", weights, holds_token.reshape(n, T)).reshape(weights.shape[1], n * T)
    return received[:, cells]


def reachable_region(token: int, windows: Windows, columns: int) -> tuple[int, int, int, int]:
    """Return the bounding box of the tokens that a token may attend to: first row and column, last row and column."""
    window_of, index_of = _window_indices(windows)
    allowed = np.ones(windows.tokens.shape[1], bool)
    if windows.allowed is not None:
        allowed = windows.allowed[window_of[token], index_of[token]].cpu().numpy()
    tokens = np.flatnonzero((window_of == window_of[token]) & allowed[index_of])
    token_rows, token_columns = np.divmod(tokens, columns)
    return int(token_rows.min()), int(token_columns.min()), int(token_rows.max()), int(token_columns.max())


def _window_indices(windows: Windows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the window of every token of the grid, and its index within the window."""
    window_of, index_of = np.divmod(windows.cells.cpu().numpy(), windows.tokens.shape[1])
    return window_of, index_of
