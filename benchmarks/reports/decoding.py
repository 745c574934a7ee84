"""How fast tokens are written: on a CPU, on a GPU, by other engines and with smaller numbers."""

from typing import Any

from regard.evaluation.bench.speed import Result as Race
from regard.evaluation.bench.speed import tabulate

from .kernels import PRODUCTS, REST, sum_by_group
from .markdown import cite, paragraphs, table
from .results import Result

THEIRS, STATIC, OURS = "huggingface", "huggingface, static cache", "regard, recorded"
WAYS = {
    THEIRS: "transformers `generate`",
    STATIC: "`generate`, static cache, compiled",
    "regard, reference": "regard: search over a stepper",
    "regard, fixed": "in fixed memory, with our kernels",
    "regard, recorded, no kernels of its own": "recorded, PyTorch's kernels alone",
    "regard, recorded, attention's kernel": "recorded, attention with our kernel",
    OURS: "**recorded, with our kernels**",
}
KINDS = {"forced": "32 tokens each", "ending": "as long as the model likes"}
SAME = {
    "float32: as the reference": "float32: fast = reference",
    "bfloat16: as the reference": "bfloat16: fast = reference",
    "the reference: bfloat16 as float32": "reference: bfloat16 = float32",
    "different sentences": "distinct",
}
GROUPS = {
    "products with weights": PRODUCTS,
    "attention": r"^attend$|flash|fmha",
    "new keys and values to their places": r"^append$",
    "Add & Norm": r"^add_norm$|layer_norm",
    "sum and likeliest of all logits": r"^scan$",
    "the beam's bookkeeping": r"^advance$",
}
HUGGING_FACE = "Hugging Face float32"
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
    about = f"{result['model']}; {result['what']}; medians, in turns; {cite(result, 'transformers')}."
    return paragraphs(table(heads, rows), about)


def write_gpu_in_brief(result: Result) -> str:
    """The way that is taken beside the best of transformers at every size."""
    speeds = _by_size(result, "tokens_per_second")
    rows = []
    for (batch, beam), found in speeds.items():
        theirs = [found.get(name) for name in (THEIRS, STATIC)]
        ratio = found[OURS] / max(speed for speed in theirs if speed is not None)
        shown = ("" if speed is None else f"{speed:,.0f}" for speed in (*theirs, found[OURS]))
        rows.append((str(batch), str(beam), *shown, f"{ratio:.1f}"))
    heads = ("batch", "beam", "transformers `generate`, tokens/s", "its static cache, compiled", "regard, tokens/s")
    checks = result["same_sentences"].values()
    same, all_of_them = (sum(one[key] for one in checks) for key in ("float32: fast = reference", "sentences"))
    return paragraphs(
        table((*heads, "times the faster of theirs"), rows),
        f"{result['model']}; {result['what']}; {_medians(result)}; in float32 {same} of {all_of_them} "
        f"sentences are those of the reference path; {cite(result, 'transformers')}.",
    )


def write_gpu_speeds(result: Result) -> str:
    """Tokens a second of every way at every size, with the slowest and the fastest."""
    speeds, edges = _by_size(result, "tokens_per_second"), _by_size(result, "fastest_and_slowest")

    def cell(way: str, size: Size) -> str:
        if way not in speeds[size]:
            return ""
        fastest, slowest = edges[size][way]
        return f"{speeds[size][way]:,.0f} ({slowest:,.0f} to {fastest:,.0f})"

    def ratios(peer: str) -> list[str]:
        return [f"{found[OURS] / found[peer]:.1f}×" if peer in found else "" for found in speeds.values()]

    rows = [(title, *(cell(way, size) for size in speeds)) for way, title in WAYS.items()]
    rows += [(f"the last over {WAYS[peer]}", *ratios(peer)) for peer in (THEIRS, STATIC)]
    failures = "; ".join(f"{name}: {error}" for name, error in result["failures"].items())
    return paragraphs(
        table(("target tokens a second", *map(_title, speeds)), rows),
        f"Failed: {failures}." if failures else "",
        f"{result['model']}; {result['what']}; {_medians(result)}; {cite(result, 'transformers')}.",
    )


def write_gpu_equality(result: Result) -> str:
    """How many sentences the fast way and the reference path write alike."""
    rows = []
    for name, found in result["same_sentences"].items():
        kind, _, beam = name.partition(", ")
        rows.append((KINDS[kind], beam, str(found["sentences"]), *(str(found[key]) for key in SAME.values())))
    return table(("lengths", "search", "sentences", *SAME), rows)


def write_gpu_profile(result: Result) -> str:
    """What a step of the fast way spends its time on; the encoder's share is in it."""
    profiles = result.get("profiles", [])
    if not profiles:
        return ""
    sums = [
        sum_by_group(((one["name"], one["us_a_step"]) for one in found["top"]), GROUPS, 1000 * found["busy_ms_a_step"])
        for found in profiles
    ]
    rows = [(group, *(f"{one[group]:,.0f}" for one in sums)) for group in (*GROUPS, REST)]
    idle = (1000 * (found["ms_a_step"] - found["busy_ms_a_step"]) for found in profiles)
    rows += [
        ("nothing: the device waits", *(f"{one:,.0f}" for one in idle)),
        ("a step, altogether", *(f"{1000 * found['ms_a_step']:,.0f}" for found in profiles)),
        ("kernels a step", *(f"{found['kernels_a_step']:.0f}" for found in profiles)),
    ]
    return table(("µs a step", *(_title((found["batch"], found["beam"])) for found in profiles)), rows)


def write_engines(result: Result) -> str:
    """Tokens a second of every engine, and how much of it float32 says too."""
    speeds = _by_size(result, "tokens_per_second", "engine")
    rows = []
    for engine in dict.fromkeys(row["engine"] for row in result["rows"]):
        least = min(row["same_words"] for row in result["rows"] if row["engine"] == engine)
        rows.append((engine, *(f"{found[engine]:,.0f}" for found in speeds.values()), f"{least:.1%}"))
    how = f"Tokens a second, medians, and the least share of the same words. {result['model']}; {result['what']}"
    return paragraphs(
        table(("engine", *map(_title, speeds), "same words"), rows),
        f"{how}; {cite(result, 'transformers', 'ctranslate2')}.",
    )


def write_engine_ratios(result: Result) -> str:
    """How many times as fast as transformers each engine is."""
    speeds = _by_size(result, "tokens_per_second", "engine")
    engines = [name for name in dict.fromkeys(row["engine"] for row in result["rows"]) if name != HUGGING_FACE]
    rows = ((name, *(f"{found[name] / found[HUGGING_FACE]:.1f}×" for found in speeds.values())) for name in engines)
    return paragraphs(
        table(("times transformers in float32", *map(_title, speeds)), rows),
        f"{result['model']}; {result['what']}; {cite(result, 'transformers', 'ctranslate2')}.",
    )


def write_quantised(result: Result) -> str:
    """What smaller numbers cost a trained model, and what they win."""
    races = [Race.from_dict(one) for one in result["results"]]
    signature = f"`{races[0].score.signature}`" if races[0].score else ""
    about = f"Milliseconds are medians from text to text; {signature}; {result['machine']}."
    return paragraphs(tabulate(races), about)


def _by_size(result: Result, key: str, who: str = "contender") -> dict[Size, dict[str, Any]]:
    """What each contender reached, by batch and beam."""
    found: dict[Size, dict[str, Any]] = {}
    for row in result["rows"]:
        found.setdefault((row["batch"], row["beam"]), {})[row[who]] = row[key]
    return found


def _medians(result: Result) -> str:
    return f"medians of {result['repetitions']}" if "repetitions" in result else "medians"


def _title(size: Size) -> str:
    return f"batch {size[0]}, beam {size[1]}"
