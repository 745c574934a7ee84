"""Cleaning: the rules, what they find in known noise, time and memory, and training on noisy and on cleaned data."""

from regard.data.text.cleaning.settings import RULES, ModelCleaningSettings

from .markdown import cite, paragraphs, table
from .results import Result
from .settings import tabulate_settings

KINDS = {
    "copy": "copies",
    "repeat": "repeats",
    "misaligned": "misaligned",
    "language": "wrong language",
    "overlap": "test pairs",
}


def write_rules() -> str:
    """Names of the rules and what they remove, in their order."""
    return table(("rule", "removes a pair if"), ((f"`{rule}`", _lower(text)) for rule, text in RULES.items()))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def write_settings() -> str:
    """Thresholds, those for models last."""
    return tabulate_settings(ModelCleaningSettings.model_fields)


def write_noise(found: dict[str, Result]) -> str:
    """Share of the noise found in each corpus, and of the clean pairs lost."""
    rows = [
        (
            f"{name.removeprefix('noisy-mix-')}, {result['pairs']:,} pairs",
            *(f"{result['by_kind'][kind]['share']:.1%}" for kind in KINDS),
            f"**{result['noise']['share']:.1%}**",
            f"**{result['clean']['share']:.1%}**",
        )
        for name, result in found.items()
    ]
    last = next(reversed(found.values()))
    about = ", ".join(f"{name} {last['versions'][name]}" for name in ("numpy", "python"))
    return paragraphs(
        table(("corpus", *KINDS.values(), "all noise found", "clean pairs lost"), rows),
        f"Default settings with py3langid, `benchmarks/noisy_mix.py`; {about}, {last['date']}.",
    )


def write_memory(result: Result) -> str:
    """Memory and CPU time by number of pairs."""
    rows = (
        (
            f"{row['pairs']:,}",
            "yes" if row["py3langid"] else "no",
            f"{row['peak_rss_mb']:,} MB",
            f"{row['cpu_seconds']:,.0f} s",
            f"{row['pairs_per_cpu_second']:,}",
        )
        for row in result["rows"]
    )
    first = result["rows"][0]
    return paragraphs(
        table(("pairs", "py3langid", "peak memory", "CPU time", "pairs per second of CPU time"), rows),
        f"Tatoeba English-German, repeated with variation; {cite(first, 'numpy')}.",
    )


def write_training(result: Result) -> str:
    """BLEU of each run on noisy and on cleaned data."""
    rows = []
    for name, mean in result["means"].items():
        runs = [row for row in result["rows"] if row["data"] == name]
        scores = ", ".join(f"{row['score']['value']:.2f}" for row in runs)
        copies = ", ".join(str(row["copies"]) for row in runs)
        rows.append((name, f"{runs[0]['pairs']:,}", f"**{mean:.2f}**", scores, copies))
    return paragraphs(
        table(("data", "pairs", "BLEU", "of each seed", "copied test sentences"), rows),
        f"{result['what']}; {', '.join(result['settings'])}; signature `{result['rows'][0]['score']['signature']}`; "
        f"{cite(result)}.",
    )
