"""Training on noisy and on cleaned data: benchmarks/noisy_mix.py and benchmarks/cleaning.py."""

from .markdown import cite, paragraphs, table
from .results import Result

KINDS = {
    "copy": "copies of the source",
    "repeat": "repeated pairs",
    "misaligned": "misaligned pairs",
    "language": "wrong language",
    "overlap": "test pairs",
}


def write_found_noise(result: Result) -> str:
    """Share of each kind of noise that was found."""
    rows = [
        (name, f"{found['made']:,}", f"{found['share']:.1%}")
        for kind, name in KINDS.items()
        for found in (result["by_kind"][kind],)
    ]
    clean = result["clean"]
    return paragraphs(
        table(("noise", "pairs", "found"), [*rows, ("all", f"{result['noise']['made']:,}", _share(result["noise"]))]),
        f"{clean['lost']:,} of {clean['distinct']:,} clean pairs were removed too ({clean['share']:.2%}), in "
        f"{result['seconds']:.0f} s; {cite(result)}.",
    )


def _share(found: Result) -> str:
    return f"**{found['share']:.1%}**"


def write_trainings(result: Result) -> str:
    """BLEU of each training on noisy and cleaned data."""
    rows = []
    for name in ("noisy", "clean"):
        runs = [row for row in result["rows"] if row["data"] == name]
        scores = ", ".join(f"{run['score']['value']:.2f}" for run in runs)
        rows.append((name, f"{runs[0]['pairs']:,}", f"**{result['means'][name]:.2f}**", scores))
    signature = result["rows"][0]["score"]["signature"]
    settings = " ".join(f"`{one}`" for one in result["settings"][1:])
    return paragraphs(
        table(("training data", "pairs", "BLEU, mean", "seeds"), rows),
        f"{result['settings'][0]} with {settings}; beam 5; signature `{signature}`; {cite(result)}.",
    )
