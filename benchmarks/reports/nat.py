"""Speed and quality of non-autoregressive models, and which published claims hold."""

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from .configurations import group_by_configuration, validation_bleu
from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
GREEDY, DEEP, TEN = "teacher, greedy", "12+1 layers, greedy", "mask-predict, 10 iterations"
ONE_PASS = (
    "mask-predict, 1 iteration",
    "cut at END",
    "CTC",
    "CTC + GLAT",
    "CTC + GLAT + DSLP",
    "graph, greedy",
    "graph, lookahead",
    "graph + FA, greedy",
    "graph + FA, lookahead",
)
EAGER = ", eager"
"""Suffix of systems that run without CUDA graphs, as in other libraries."""
INT8 = ", int8"
"""Suffix of systems with int8 weights."""
Row = dict[str, Any]
CLAIMED = {"CTC": 89, "CTC + GLAT": 92, TEN: 95}
"""Published percentage of the autoregressive BLEU on WMT14."""
CLAIMED_SPEED = {"one pass": 15, "ten iterations": 2}
"""Published speed relative to the autoregressive model at batch 1."""


def write_trade_off(found: dict[str, Result]) -> str:
    """Tables of all existing results."""
    parts = []
    for name, result in found.items():
        if name == "nat-builtin":
            parts += [f"{begin_sentence(result['what'])}; `{result['command']}`, {result['date']}.", _quality(result)]
        else:
            how = f"{result['what']}; {cite(result, with_command=False)}"
            parts += [f"{how}; in parentheses, speed relative to the first row:", _trade(result), _note(result)]
            if (IMAGES / f"{name}.svg").exists():
                parts.append(f"![Quality against speed on {result['machine']}](images/{name}.svg)")
    return paragraphs(*parts)


def write_claims(found: dict[str, Result]) -> str:
    """Published claims next to our figures."""
    results = [result for result in found.values() if all(row["score"] for row in result["results"])]
    return "\n".join((_judge_quality(results[0]), _judge_speed(results), _judge_caution(results))) if results else ""


def write_quality(found: dict[str, Result]) -> str:
    """BLEU of every configuration of multi30k-nat.yaml, and its share of that of the teacher."""
    groups = group_by_configuration(found)
    tested = {name: [run for run in runs if "score" in run] for name, runs in groups.items()}
    means = {name: fmean(run["score"]["value"] for run in runs) for name, runs in tested.items() if runs}
    teacher, rows = means.get("teacher"), []
    for name, mean in sorted(means.items(), key=lambda item: -item[1]):
        scores = [run["score"]["value"] for run in tested[name]]
        rows.append(
            (
                name,
                ", ".join(dict.fromkeys(run["search"] for run in tested[name])),
                str(len(scores)),
                f"{validation_bleu(tested[name]):.2f}",
                f"**{mean:.2f}**" + (f" ± {stdev(scores):.2f}" if scores[1:] else ""),
                f"{100 * mean / teacher:.1f} %" if teacher else "",
                f"{fmean(run['training_seconds'] for run in tested[name]):.0f}",
            )
        )
    if not rows:
        return ""
    first = next(run for runs in tested.values() for run in runs)
    command = "python benchmarks/translation.py multi30k-nat DATA OUT every --seed 1 2 3 --test"
    heads = ("configuration", "search", "seeds", "BLEU valid", "BLEU test", "of the teacher", "training s")
    return paragraphs(
        "Multi30k en-de, test_2016_flickr, tokenised and lowercased; the search is the best one on the validation set, "
        "± is the standard deviation of the seeds:",
        table(heads, rows),
        f"Configurations of benchmarks/configurations/multi30k-nat.yaml. Signature `{first['score']['signature']}`. "
        f"{cite(first, with_command=False)}; `{command}`.",
    )


def _quality(result: Result) -> str:
    rows = (
        (
            row["model"],
            ", ".join(f"{key} {value}" for key, value in row["search"].items()),
            f"{row['score']['value']:.2f}",
            f"{row['exact_matches_percent']:.1f}%",
        )
        for row in result["rows"]
    )
    return table(("model", "search", "BLEU", "exact matches"), rows)


def _trade(result: Result) -> str:
    rows = result["results"]
    heads = ["", "BLEU", "parameters", *(f"ms, batch {timing['batch']}" for timing in rows[0]["timings"])]
    return table(
        heads, ([row["name"], _bleu(row), f"{row['parameters'] / 1e6:.1f} M", *_times(row, rows[0])] for row in rows)
    )


def _bleu(row: Row) -> str:
    return f"{row['score']['value']:.2f}" if row["score"] else ""


def _times(row: Row, first: Row) -> list[str]:
    cells = []
    for timing, usual in zip(row["timings"], first["timings"], strict=True):
        turns = timing.get("turns", [])
        spread = f" ± {(max(turns) - min(turns)) / 2:.1f}" if turns else ""
        faster = usual["milliseconds"] / timing["milliseconds"]
        cells.append(f"{timing['milliseconds']:.1f}{spread} ({faster:.2f}×)")
    return cells


def _note(result: Result) -> str:
    """Conditions of a table."""
    rounded = result.get("rounded_to_bfloat16", [])
    weights = f"The weights of {_list(rounded)} were stored in bfloat16. " if rounded else ""
    turns = [turns for row in result["results"] for timing in row["timings"] if (turns := timing.get("turns"))]
    taken = (
        "Models alternate; ± is half the range of the medians of a model's turns."
        if turns
        else "Models were timed one after another."
    )
    eager = (
        "Rows marked eager run without CUDA graphs, with a KV cache, and are to be compared with the eager teacher; "
        "all others run as [CUDA graphs](decoding-speed.md#non-autoregressive-models) where possible. "
        if any(row["name"].endswith(EAGER) for row in result["results"])
        else ""
    )
    return f"{eager}{_training_data(result)}{weights}{taken}"


def _training_data(result: Result) -> str:
    """Training data of the students."""
    if "students" not in result:
        return (
            "Models are those of seed 1 of benchmarks/configurations/multi30k-nat.yaml, trained on the teacher's "
            "translations of the training set and of further captions. "
        )
    warm = [name for name, student in result["students"].items() if student["warm"]]
    parts = ["All students were trained on the teacher's translations of the training set and of further captions"]
    parts += [f"{_list(warm)} started from the teacher's encoder"] if warm else []
    alike = "Steps and batch sizes were chosen for each model"
    return f"{'; '.join(parts)}. {alike}. "


def _judge_quality(result: Result) -> str:
    scores = {row["name"]: row["score"]["value"] for row in result["results"]}
    best = max(score for name, score in scores.items() if name.startswith("teacher") and not name.endswith(INT8))
    share = {name: round(100 * score / best) for name, score in scores.items()}
    own = [f"{share[name]} % ({_holds(share[name] >= claimed)})" for name, claimed in CLAIMED.items()]
    reranked = [f"mask-predict, {count} iterations, 5 lengths, reranked" for count in (10, 4)]
    speeds = [f"{_ratios(result, GREEDY, (name,))[1][0]:.1f}" for name in reranked]
    return (
        f"- **Quality.** On WMT14, papers report {CLAIMED['CTC']} % of the autoregressive model's BLEU for CTC, "
        f"{CLAIMED['CTC + GLAT']} % for CTC + GLAT and {CLAIMED[TEN]} % for mask-predict with ten iterations. We "
        f"measure {_list(own)}. Ten iterations with three length candidates reach {share[TEN + ', 3 lengths']} %; "
        f"reranking five length candidates with the teacher reaches {share[reranked[0]]} %, and {share[reranked[1]]} % "
        f"with four iterations, at {_list(speeds)} times the speed of its greedy search for single sentences on "
        f"{result['machine']}."
    )


def _holds(true: bool) -> str:
    return "holds" if true else "does not hold"


def _judge_speed(results: list[Result]) -> str:
    parts, reached = [], {"one pass": 0.0, "ten iterations": 0.0}
    for result in results:
        one_pass = _one_pass(result)
        ratios, rounds = _ratios(result, GREEDY, one_pass), _ratios(result, GREEDY, (TEN,))
        reached["ten iterations"] = max(reached["ten iterations"], rounds[1][1])
        has_eager = any(row["name"] == GREEDY + EAGER for row in result["results"])
        eager = _ratios(result, GREEDY + EAGER, tuple(name + EAGER for name in one_pass)) if has_eager else {}
        reached["one pass"] = max(reached["one pass"], *(of_all[1][1] for of_all in (ratios, eager) if of_all))
        mode = ", both with CUDA graphs" if has_eager else ""
        ten = _list([f"{low:.1f}" for low, _ in rounds.values()])
        parts.append(
            f"On {result['machine']}{mode}, one pass is {_in_words(ratios)}; ten iterations are {ten} times as fast."
        )
        if has_eager:
            parts.append(f"Without CUDA graphs one pass is {_in_words(eager)}.")
            parts.append(_explain_capture(result))
    found = [
        f"{claimed} times for {what} {_holds(reached[what] >= claimed)}" for what, claimed in CLAIMED_SPEED.items()
    ]
    return (
        f"- **Speed.** Papers report {CLAIMED_SPEED['one pass']} times the speed for one pass and "
        f"{CLAIMED_SPEED['ten iterations']} times for ten iterations, at batch 1 and against unoptimised decoders. "
        f"Our baseline is a cached greedy search of the same size. {' '.join(parts)} So {_list(found)}."
    )


def _explain_capture(result: Result) -> str:
    """Why the speed-up differs with and without CUDA graphs."""
    rows = {row["name"]: row for row in result["results"]}
    best = max(_one_pass(result), key=lambda name: float(rows[name]["score"]["value"]))
    times = {
        name: rows[name]["timings"][0]["milliseconds"] for how in ("", EAGER) for name in (GREEDY + how, best + how)
    }
    return (
        f"CUDA graphs help the search more, because it launches every step: one sentence takes {times[GREEDY]:.1f} "
        f"instead of {times[GREEDY + EAGER]:.1f} ms, and {best} {times[best]:.1f} instead of "
        f"{times[best + EAGER]:.1f} ms. Where both can be captured, the smaller factor is the real gain."
    )


def _judge_caution(results: list[Result]) -> str:
    scores = {row["name"]: row["score"]["value"] for row in results[0]["results"]}
    best = max(scores[name] for name in _one_pass(results[0]))
    parts = [
        f"on {result['machine']}, one pass is {_in_words(_ratios(result, DEEP, _one_pass(result)))}"
        for result in results
    ]
    return (
        "- **Caution** (Helcl et al. 2022): the baseline to beat is an autoregressive model with a deep encoder and a "
        f"shallow decoder. With 12+1 layers it has {scores[DEEP]:.1f} BLEU with greedy search; the best single pass "
        f"has {best:.1f}. Compared with it, {_list(parts)}."
    )


def _one_pass(result: Result) -> tuple[str, ...]:
    """Names of the measured systems that decode in one pass."""
    measured = {row["name"] for row in result["results"]}
    return tuple(name for name in ONE_PASS if name in measured)


def _ratios(result: Result, usual: str, others: tuple[str, ...]) -> dict[int, tuple[float, float]]:
    """Minimum and maximum speed of `others` relative to `usual`, by batch size."""
    times = {
        (row["name"], timing["batch"]): timing["milliseconds"] for row in result["results"] for timing in row["timings"]
    }
    found = {}
    for batch in dict.fromkeys(batch for _, batch in times):
        ratios = [times[usual, batch] / times[name, batch] for name in others]
        found[batch] = (min(ratios), max(ratios))
    return found


def _in_words(ratios: dict[int, tuple[float, float]]) -> str:
    return _list([f"{low:.1f} to {high:.1f} times as fast at batch {batch}" for batch, (low, high) in ratios.items()])


def _list(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + parts[-1]
