"""Results of benchmarks/attribution.py: how often the aligned source word is found."""

from .markdown import cite, paragraphs, table
from .results import Result

ROWS = {
    "pad": "integrated gradients, padding token",
    "mean": "integrated gradients, mean vector",
    "zero": "integrated gradients, zeros",
    "occlusion": "occlusion, padding token",
}


def write_alignment(result: Result) -> str:
    """A row for each baseline, and one for occlusion."""
    rows = []
    for name, title in ROWS.items():
        found = result["results"][name]
        error = f"{found['largest_error']:.1%}" if "largest_error" in found else ""
        gradients = f"{found['points']:.0f}" if "points" in found else ""
        rows.append([title, f"{found['top_1']:.1%}", f"{found['top_2']:.1%}", error, gradients])
    header = ["", "highest score", "two highest", "largest completeness error", "gradients, mean"]
    return paragraphs(table(header, rows), f"{result['content_words']:,} content words. {cite(result)}.")
