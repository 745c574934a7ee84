"""Results of benchmarks/experiments.py: sentences and tables of docs/experiments.md and its Chinese page."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result

TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
"""Texts by experiment and language."""
WIDTHS = (1, 8, 32, 64, 512)
"""Head widths in the table."""
VANISHED = 1e-12


def write_gradients(result: Result, language: str = "en") -> str:
    last = 2 * result["layers"]
    rows, labels = [], TEXTS["gradients"][language].get("rows", {})
    for name, variant in result["variants"].items():
        norms = [
            scientific(seeds(variant[when], block))
            for when in ("first", "last")
            for block in (0, last // 2 - 1, last // 2, last - 1)
        ]
        rows.append((labels.get(name, name), *norms, scientific(distances(variant), 1e-6), span(variant["loss"])))
    variants = result["variants"]
    with_residuals, without = ([v for n, v in variants.items() if f" {word} " in n] for word in ("with", "without"))
    figures = {
        "layers": result["layers"],
        "steps": result["steps"],
        "guessing": f"{result['loss_of_guessing']:.2f}",
        "smallest": scientific([min(min(run) for variant in with_residuals for run in variant["first"])]),
        "encoder": span([run[0] for variant in without for run in variant["first"]], 1),
        "decoder": scientific([max(run[last // 2] for variant in without for run in variant["first"])]),
        "collapsed": scientific([max(max(distances(variant)) for variant in without)], 1e-6),
        "pre_distance": span(distances(variants["pre-norm, with residual connections"])),
        "post_distance": scientific(distances(variants["post-norm, with residual connections"])),
        "stuck": span([loss for variant in without for loss in variant["loss"]]),
        "pre": span(variants["pre-norm, with residual connections"]["loss"]),
        "post": span(variants["post-norm, with residual connections"]["loss"]),
        "post_decoder": scientific(seeds(variants["post-norm, with residual connections"]["first"], last // 2)),
        "pre_decoder": scientific(seeds(variants["pre-norm, with residual connections"]["first"], last // 2)),
    }
    return compose("gradients", language, result, figures, rows)


def write_sharpness(result: Result, language: str = "en") -> str:
    scaled, plain = result["random"].values()
    at = {width: result["widths"].index(width) for width in WIDTHS}

    def value(part: dict[str, Any], key: str, width: int, digits: int = 2) -> str:
        return f"{fmean(seeds(part[key], at[width])):.{digits}f}"

    keys = [("entropy", 2), ("largest", 2), ("gradient", 3)]
    rows = [(f"{d}", *(value(part, key, d, n) for key, n in keys for part in (scaled, plain))) for d in WIDTHS]
    losses = {(row["scale"], row["head_width"]): span(row["loss"]) for row in result["trained"]}
    with_scale, without = result["random"]
    trained = [(f"{d}", losses[with_scale, d], losses[without, d]) for d in (8, 32, 128)]
    gradients = [[fmean(column) for column in zip(*part["gradient"], strict=True)] for part in (scaled, plain)]
    figures = {
        "keys": result["keys"],
        "entropies": span([e for run in scaled["entropy"] for e in run[1:]], 1),
        "narrow_entropy": value(plain, "entropy", 8, 1),
        "wide_entropy": value(plain, "entropy", 512, 1),
        "largest": value(plain, "largest", 512),
        "crossing": next(w for w, a, b in zip(result["widths"], *gradients, strict=True) if a > b),
        "before": value(plain, "gradient", 8),
        "before_scaled": value(scaled, "gradient", 8),
        "gradient": value(plain, "gradient", 512, 3),
        "gradient_scaled": value(scaled, "gradient", 512, 3),
        "steps": result["steps"],
        **{f"loss_{d}": losses[without, d] for d in (8, 128)},
        **{f"scaled_loss_{d}": losses[with_scale, d] for d in (8, 128)},
    }
    return compose("sharpness", language, result, figures, rows, trained)


def write_neighbours(result: Result, language: str = "en") -> str:
    rows_of_seeds, kinds = result["rows"], ("embedding", "contextual")
    labels = TEXTS["neighbours"][language]["rows"]

    def percent(*path: str) -> str:
        return span([100 * follow(row, path) for row in rows_of_seeds], 1) + " %"

    def cosine(*path: str) -> str:
        return span([follow(row, path) for row in rows_of_seeds])

    senses = list(rows_of_seeds[0]["senses"])
    rows = [
        (labels["neighbours"], *(percent("neighbours", kind, "same_group") for kind in kinds)),
        *((labels[name], *(cosine("cosines", kind, name) for kind in kinds)) for name in labels["cosines"]),
        *(
            (labels["sense"].format(word=word), *(percent("senses", word, f"accuracy_{kind}") for kind in kinds))
            for word in senses
        ),
        (labels["length"], *(cosine("length", kind) for kind in kinds)),
    ]
    right = {
        kind: [
            sum(row["senses"][word]["occurrences"] * row["senses"][word][f"accuracy_{kind}"] for word in senses)
            for row in rows_of_seeds
        ]
        for kind in kinds
    }
    count = sum(one["occurrences"] for one in rows_of_seeds[0]["senses"].values())
    figures = {
        "words": rows_of_seeds[0]["words"],
        "chance": percent("neighbours", "embedding", "by_chance"),
        "same_word": percent("nearest_is_same_word"),
        "occurrences": count,
        "within": span([row["senses"][word]["within"] for row in rows_of_seeds for word in senses]),
        "between": span([row["senses"][word]["between"] for row in rows_of_seeds for word in senses]),
        **{f"group_{kind}": percent("neighbours", kind, "same_group") for kind in kinds},
        **{f"right_{kind}": span([100 * value / count for value in right[kind]], 0) for kind in kinds},
        **{f"length_{kind}": cosine("length", kind) for kind in kinds},
        **{f"word_{kind}": cosine("cosines", kind, "same word") for kind in kinds},
    }
    return compose("neighbours", language, result, figures, rows)


def write_self_attention(result: Result, language: str = "en") -> str:
    rows, figures = [], {}
    labels = TEXTS["self-attention"][language]["rows"]
    for name in result["trained"][0]:
        stack, number, _ = name.split(".")
        uniform = result["uniform"][stack]
        heads = {key: [value for run in result["trained"] for value in run[name][key]] for key in ("weight", "highest")}
        untrained = [value for run in result["untrained"] for value in run[name]["weight"]]
        raw = [value for run in result["without_projections"] for value in run[name]["highest"]]
        rows.append(
            (
                f"{labels[stack]} {int(number) + 1}",
                *(f"{fmean(heads[key]):.2f} ({span(heads[key])})" for key in ("weight", "highest")),
                f"{uniform['weight'][0]:.2f}",
                f"{fmean(untrained):.2f}",
                f"{fmean(raw):.2f}",
            )
        )
    for stack in ("encoder", "decoder"):
        chosen = [name for name in result["trained"][0] if name.startswith(stack)]
        for key in ("weight", "highest"):
            values = [v for run in result["trained"] for name in chosen for v in run[name][key]]
            figures |= {f"{stack}_{key}": f"{fmean(values):.2f}", f"{stack}_{key}_most": f"{max(values):.2f}"}
            figures[f"{stack}_{key}_span"] = span(values)
        shares = [v for run in result["trained"] for name in chosen for v in run[name]["highest"]]
        figures[f"{stack}_most"] = f"{sum(v > 0.5 for v in shares)}"
        figures[f"{stack}_heads"] = f"{len(shares)}"
        figures[f"{stack}_uniform"] = f"{result['uniform'][stack]['weight'][0]:.2f}"
    raw = [v for run in result["without_projections"] for one in run.values() for v in one["highest"]]
    figures["raw"] = f"{min(raw):.2f}"
    return compose("self-attention", language, result, figures, rows)


def write_exposure_bias(result: Result, language: str = "en") -> str:
    labels = TEXTS["exposure-bias"][language]["rows"]
    groups, conditions = list(result["sentences"]), ("free", "right", "wrong")
    rows = [
        (
            labels[kind],
            labels["method"][method.split(",")[0]].format(steps=method.split()[-2]),
            span([run[kind]["all"]["bleu"] for run in runs], 1),
            *(span([run[kind][group]["exact"] for run in runs], 1) for group in ("all", *groups)),
        )
        for kind in conditions
        for method, runs in result["scores"].items()
    ]
    figures = {f"example_{key}": value for key, value in result["example"].items()}
    for method, runs in result["scores"].items():
        name = f"{method.split()[0]}_{method.split()[-2]}"
        kept = [100 * run["wrong"]["all"]["exact"] / run["right"]["all"]["exact"] for run in runs]
        figures[f"{name}_kept"] = span(kept, 0)
        for kind in conditions:
            for group in ("all", groups[0], groups[-1]):
                part = {"all": "all", groups[0]: "short", groups[-1]: "long"}[group]
                figures[f"{name}_{kind}_{part}"] = span([run[kind][group]["exact"] for run in runs], 1)
    figures |= {key: result[key] for key in ("steps", "all_steps")}
    return compose("exposure-bias", language, result, figures, rows)


def compose(
    name: str,
    language: str,
    result: Result,
    figures: dict[str, Any],
    rows: Iterable[Sequence[str]],
    *further: Iterable[Sequence[str]],
) -> str:
    """Join the sentences of an experiment, with the figures filled in, its tables and the citation."""
    texts = TEXTS[name][language]
    heads = [texts["heads"], *texts.get("further", ())]
    tables = [table(head.split("|"), body) for head, body in zip(heads, (rows, *further), strict=True)]
    seeds_of = ", ".join(map(str, result["seeds"]))
    semicolon, name_of_seeds, end = {"en": ("; ", "seeds", "."), "zh": ("；", "随机种子", "。")}[language]
    what = texts["what"].format(**result) if "what" in texts else result["what"]
    source = f"{what}{semicolon}{name_of_seeds} {seeds_of}{semicolon}{cite(result)}{end}"
    return paragraphs(texts["found"].format(**figures), *tables, begin_sentence(source))


def seeds(runs: Sequence[Sequence[float]], index: int) -> list[float]:
    """Return a value of each seed."""
    return [run[index] for run in runs]


def span(values: Sequence[float], digits: int = 2) -> str:
    """Return the range of values, or one number if both ends are shown alike."""
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def distances(variant: dict[str, Any]) -> list[float]:
    """Return 1 − cosine of two tokens after the last encoder block, for each seed."""
    return [1 - run[-1] for run in variant["similarity"]]


def scientific(values: Sequence[float], smallest: float = VANISHED) -> str:
    value = fmean(values)
    if value < smallest:
        return f"< {smallest:g}"
    return f"{value:.2f}" if value >= 0.01 else f"{value:.1g}"


def follow(row: Any, path: Sequence[str]) -> float:
    for key in path:
        row = row[key]
    return float(row)
