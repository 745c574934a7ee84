"""What writing all tokens at once gains and costs, and what of the literature holds."""

from pathlib import Path
from typing import Any

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
GREEDY, DEEP, TEN = "teacher, greedy", "12+1 layers, greedy", "mask-predict, 10 rounds"
ONE_PASS = ("mask-predict, 1 round", "cut at END", "CTC", "CTC + GLAT")
LAUNCHED = ", launched"
"""Ends the names of those that a GPU does not replay from a recording: kernel by kernel, as other libraries do it."""
Row = dict[str, Any]


def write_trade(found: dict[str, Result]) -> str:
    """The tables, as far as there are results."""
    parts = []
    for name, result in found.items():
        if name == "parallel-builtin":
            parts += [f"{begin_sentence(result['what'])}; `{result['command']}`, {result['date']}.", _quality(result)]
        else:
            how = f"{result['what']}; {cite(result, with_command=False)}"
            parts += [f"{how}; in brackets, how much faster than the first:", _trade(result), _note(result)]
            if (IMAGES / f"{name}.svg").exists():
                parts.append(f"![Quality against speed on {result['machine']}](images/{name}.svg)")
    return paragraphs(*parts)


def write_verdict(found: dict[str, Result]) -> str:
    """The literature's claims beside our own figures."""
    results = [result for result in found.values() if all(row["score"] for row in result["results"])]
    return "\n".join((_judge_quality(results[0]), _judge_speed(results), _judge_caution(results))) if results else ""


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
    return table(("model", "search", "BLEU", "exact"), rows)


def _trade(result: Result) -> str:
    rows = result["results"]
    heads = ["", "BLEU", "parameters", *(f"ms a batch of {timing['batch']}" for timing in rows[0]["timings"])]
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
    """What else must be known of a table."""
    rounded = result["rounded_to_bfloat16"]
    weights = f"The weights of {_list(rounded)} were rounded to bfloat16 once. " if rounded else ""
    turns = [turns for row in result["results"] for timing in row["timings"] if (turns := timing.get("turns"))]
    taken = (
        "The models took turns; ± is half of what the medians of a model's turns differ by."
        if turns
        else "The models were timed one after the other."
    )
    return f"How each student was taught is what `STUDENTS` in benchmarks/parallel.py says. {weights}{taken}"


def _judge_quality(result: Result) -> str:
    scores = {row["name"]: row["score"]["value"] for row in result["results"]}
    best = max(score for name, score in scores.items() if name.startswith("teacher"))
    share = {name: f"{100 * score / best:.0f} %" for name, score in scores.items()}
    reranked = "mask-predict, {} rounds, 5 lengths, reranked"
    return (
        "- **Quality.** On WMT14, papers report 89 % of the autoregressive model's BLEU for CTC, 92 % for CTC with "
        f"glancing and 95 % for ten rounds of mask-predict. Ours reach {share['CTC']}, {share['CTC + GLAT']} and "
        f"{share[TEN]}, with three lengths {share[TEN + ', 3 lengths']}; where the teacher chooses among five lengths, "
        f"{share[reranked.format(10)]}, and with four rounds {share[reranked.format(4)]}."
    )


def _judge_speed(results: list[Result]) -> str:
    said = []
    for result in results:
        ratios = _ratios(result, GREEDY, ONE_PASS)
        ten = [f"{low:.1f}" for low, _ in _ratios(result, GREEDY, (TEN,)).values()]
        said.append(f"On {result['machine']}, one pass is {_in_words(ratios)}; ten rounds {_list(ten)} times as fast.")
        if any(row["name"] == GREEDY + LAUNCHED for row in result["results"]):
            plain = _ratios(result, GREEDY + LAUNCHED, tuple(name + LAUNCHED for name in ONE_PASS))
            said.append(f"These are replayed from recordings, both; launched kernel by kernel, {_in_words(plain)}.")
    return (
        "- **Speed.** Papers report 15 times the speed for one pass and twice the speed for ten rounds, of a batch of "
        f"one and of a decoder without much care. Ours are against a cached greedy search. {' '.join(said)}"
    )


def _judge_caution(results: list[Result]) -> str:
    scores = {row["name"]: row["score"]["value"] for row in results[0]["results"]}
    best = max(scores[name] for name in ONE_PASS)
    said = [f"on {result['machine']}, one pass is {_in_words(_ratios(result, DEEP, ONE_PASS))}" for result in results]
    return (
        "- **The caution** is that a deep encoder with a shallow decoder, token by token, is what one pass has to beat "
        f"(Helcl et al. 2022). Ours of 12 layers and 1 has {scores[DEEP]:.1f} BLEU greedily, one pass {best:.1f} at "
        f"best. Against it, {_list(said)}."
    )


def _ratios(result: Result, usual: str, others: tuple[str, ...]) -> dict[int, tuple[float, float]]:
    """How many times faster than the usual the slowest and the fastest of the others are, by size of batch."""
    times = {
        (row["name"], timing["batch"]): timing["milliseconds"] for row in result["results"] for timing in row["timings"]
    }
    found = {}
    for batch in dict.fromkeys(batch for _, batch in times):
        ratios = [times[usual, batch] / times[name, batch] for name in others]
        found[batch] = (min(ratios), max(ratios))
    return found


def _in_words(ratios: dict[int, tuple[float, float]]) -> str:
    return _list(
        [f"{low:.1f} to {high:.1f} times as fast in batches of {batch}" for batch, (low, high) in ratios.items()]
    )


def _list(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + parts[-1]
