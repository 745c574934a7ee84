"""Decoding speed on a CPU and a GPU, of other engines, and with quantised weights."""

from typing import Any

from regard.evaluation.benchmark.harness import Result as BenchResult
from regard.evaluation.benchmark.harness import tabulate

from .kernels import MATMULS, REST, sum_by_group
from .markdown import cite, paragraphs, table
from .results import Result

THEIRS, STATIC, OURS = "huggingface", "huggingface, static cache", "regard, captured"
SYSTEMS = {
    THEIRS: "transformers `generate`",
    STATIC: "`generate`, static cache, compiled",
    "regard, reference": "regard: stepper",
    "regard, static cache, eager": "static cache, eager",
    "regard, captured, torch kernels only": "captured, torch kernels only",
    "regard, captured, attention kernel": "captured, our attention kernel",
    OURS: "**captured, all our kernels**",
}
KINDS = {"forced": "32 tokens each", "ending": "until END"}
SAME = {
    "float32: equals reference": "float32: fast = reference",
    "bfloat16: equals reference": "bfloat16: fast = reference",
    "reference: bfloat16 equals float32": "reference: bfloat16 = float32",
    "distinct sentences": "distinct",
}
GROUPS = {
    "linear layers": MATMULS,
    "attention": r"^attend$|flash|fmha",
    "cache writes": r"^append$",
    "Add & Norm": r"^add_norm_inference$|layer_norm",
    "softmax and top-k of the logits": r"^scan$",
    "beam update": r"^advance$",
}
Size = tuple[int, int]


def write_cpu(result: Result) -> str:
    rows = (
        (
            str(row["batch"]),
            str(row["beam"]),
            f"{row['huggingface_tokens_per_second']:,.0f}",
            f"{row['regard_tokens_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['same_sentences']} of {row['batch']}",
        )
        for row in result["rows"]
    )
    heads = ("batch", "beam", "transformers `generate`, tokens/s", "regard, tokens/s", "ratio", "same output")
    about = f"{result['model']}; {result['what']}; medians, alternating; {cite(result, 'transformers')}."
    return paragraphs(table(heads, rows), about)


def write_gpu_speeds(result: Result) -> str:
    """Tokens per second of every implementation at every size, with the range."""
    speeds, edges = _by_size(result, "tokens_per_second"), _by_size(result, "fastest_and_slowest")

    def cell(system: str, size: Size) -> str:
        if system not in speeds[size]:
            return ""
        fastest, slowest = edges[size][system]
        return f"{speeds[size][system]:,.0f} ({slowest:,.0f} to {fastest:,.0f})"

    def ratios(other: str) -> list[str]:
        return [f"{found[OURS] / found[other]:.1f}×" if other in found else "" for found in speeds.values()]

    rows = [(title, *(cell(system, size) for size in speeds)) for system, title in SYSTEMS.items()]
    rows += [(f"last row × {SYSTEMS[other]}", *ratios(other)) for other in (THEIRS, STATIC)]
    failures = "; ".join(f"{name}: {error}" for name, error in result["failures"].items())
    return paragraphs(
        table(("target tokens per second", *map(_title, speeds)), rows),
        f"Failed: {failures}." if failures else "",
        f"{result['model']}; {result['what']}; {_medians(result)}; {cite(result, 'transformers')}.",
    )


def write_gpu_equality(result: Result) -> str:
    """Number of sentences with equal output."""
    rows = []
    for name, found in result["same_sentences"].items():
        kind, _, beam = name.partition(", ")
        rows.append((KINDS[kind], beam, str(found["sentences"]), *(str(found[key]) for key in SAME.values())))
    return table(("lengths", "search", "sentences", *SAME), rows)


def write_gpu_profile(result: Result) -> str:
    """Profile of a captured step, including the share of the encoder."""
    profiles = result.get("profiles", [])
    if not profiles:
        return ""
    sums = [
        sum_by_group(
            ((one["name"], one["us_per_step"]) for one in found["top"]), GROUPS, 1000 * found["busy_ms_per_step"]
        )
        for found in profiles
    ]
    rows = [(group, *(f"{one[group]:,.0f}" for one in sums)) for group in (*GROUPS, REST)]
    idle = (1000 * (found["ms_per_step"] - found["busy_ms_per_step"]) for found in profiles)
    rows += [
        ("idle", *(f"{one:,.0f}" for one in idle)),
        ("whole step", *(f"{1000 * found['ms_per_step']:,.0f}" for found in profiles)),
        ("kernels per step", *(f"{found['kernels_per_step']:.0f}" for found in profiles)),
    ]
    return table(("µs per step", *(_title((found["batch"], found["beam"])) for found in profiles)), rows)


def write_engines(result: Result) -> str:
    """Tokens per second of every engine, and agreement with float32."""
    speeds = _by_size(result, "tokens_per_second", "engine")
    rows = []
    for engine in dict.fromkeys(row["engine"] for row in result["rows"]):
        least = min(row["equal_tokens"] for row in result["rows"] if row["engine"] == engine)
        rows.append((engine, *(f"{found[engine]:,.0f}" for found in speeds.values()), f"{least:.1%}"))
    how = f"Tokens per second (medians) and smallest share of equal tokens. {result['model']}; {result['what']}"
    return paragraphs(
        table(("engine", *map(_title, speeds), "equal tokens"), rows),
        f"{how}; {cite(result, 'transformers', 'ctranslate2')}.",
    )


def write_quantisation(result: Result) -> str:
    """Quality and speed of quantised models."""
    results = [BenchResult.from_dict(one) for one in result["results"]]
    signature = f"`{results[0].score.signature}`" if results[0].score else ""
    about = f"Milliseconds are medians from text to text; {signature}; {result['machine']}."
    return paragraphs(tabulate(results), about)


def _by_size(result: Result, key: str, key_of_system: str = "system") -> dict[Size, dict[str, Any]]:
    """Value of each system by batch and beam."""
    found: dict[Size, dict[str, Any]] = {}
    for row in result["rows"]:
        found.setdefault((row["batch"], row["beam"]), {})[row[key_of_system]] = row[key]
    return found


def _medians(result: Result) -> str:
    return f"medians of {result['repetitions']}" if "repetitions" in result else "medians"


def _title(size: Size) -> str:
    return f"batch {size[0]}, beam {size[1]}"
