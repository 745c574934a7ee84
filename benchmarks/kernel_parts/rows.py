"""Products of a few rows in single precision, as in a recorded step of decoding or a pass over one sentence."""

from functools import partial

import torch
import torch.nn.functional as F

from regard import rows

from .bench import Bench


def measure_rows(bench: Bench) -> None:
    """One product after another, forty of them, beside the library's, and with other tiles."""
    usual = rows.TILES
    choices = [
        rows.Tiles(*choice, precision)
        for precision in ("ieee", "tf32x3")
        for choice in ((16, 128, 8, 3), (16, 64, 4, 3), (16, 128, 4, 3), (32, 64, 4, 3), (16, 64, 4, 4))
    ]
    for width, made in ((16, 24),) if bench.toy else ((256, 768), (256, 256), (256, 1024), (1024, 256)):
        weight, bias = (torch.randn(*shape, device=bench.device) for shape in ((made, width), (made,)))
        for number in (1, 8, 32, 96):
            x = torch.randn(number, width, device=bench.device)
            name = f"{number} × {width} to {made}"
            library = partial(F.linear, x, weight, bias)
            exact = F.linear(x.double(), weight.double(), bias.double())
            bench.note("rows", f"{name}, errors", library=float((library() - exact).abs().max()))
            bench.attempt("rows", f"{name}, PyTorch", partial(bench.times, "40", _often(library)))
            for tiles in choices:
                rows.TILES = tiles
                ours = partial(rows.multiply, x, weight, bias)

                def measure(run: partial[torch.Tensor] = ours, right: torch.Tensor = exact) -> dict[str, object]:
                    return {"error": float((run() - right).abs().max()), **bench.times("40", _often(run))}

                bench.attempt("rows", f"{name}, {' '.join(map(str, tiles))}", measure)
    rows.TILES = usual


def _often(run: partial[torch.Tensor]) -> partial[None]:
    def repeat() -> None:
        for _ in range(40):
            run()

    return partial(repeat)
