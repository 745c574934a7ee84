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
CLAIMED = {"CTC": 89, "CTC + GLAT": 92, TEN: 95}
"""Percent of the autoregressive model's BLEU on WMT14, as papers report it."""
CLAIMED_SPEED = {"one pass": 15, "ten rounds": 2}
"""Times the speed of the autoregressive model, a sentence at a time."""


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
    launched = (
        "What is launched goes to the GPU kernel by kernel, keys and values cached as ever, and is to be set against "
        "the teacher that is launched; everything else is replayed "
        "[from recordings](decoding-speed.md#models-that-write-all-at-once) where it can be. "
        if any(row["name"].endswith(LAUNCHED) for row in result["results"])
        else ""
    )
    return f"{launched}{_taught(result)}{weights}{taken}"


def _taught(result: Result) -> str:
    """What the students learned from."""
    warm = [name for name, student in result["students"].items() if student["warm"]]
    said = ["All students learned from the teacher's translations of the training set and of further captions"]
    said += [f"{_list(warm)} began with the teacher's encoder"] if warm else []
    alike = "Steps and batches are those that suited each, not the same for all: `STUDENTS` in benchmarks/parallel.py"
    return f"{'; '.join(said)}. {alike}. "


def _judge_quality(result: Result) -> str:
    scores = {row["name"]: row["score"]["value"] for row in result["results"]}
    best = max(score for name, score in scores.items() if name.startswith("teacher"))
    share = {name: round(100 * score / best) for name, score in scores.items()}
    own = [f"{share[name]} % ({_holds(share[name] >= claimed)})" for name, claimed in CLAIMED.items()]
    reranked = [f"mask-predict, {rounds} rounds, 5 lengths, reranked" for rounds in (10, 4)]
    speeds = [f"{_ratios(result, GREEDY, (name,))[1][0]:.1f}" for name in reranked]
    return (
        f"- **Quality.** On WMT14, papers report {CLAIMED['CTC']} % of the autoregressive model's BLEU for CTC, "
        f"{CLAIMED['CTC + GLAT']} % for CTC with glancing and {CLAIMED[TEN]} % for ten rounds of mask-predict. Ours "
        f"reach {_list(own)}. Ten rounds with three lengths have {share[TEN + ', 3 lengths']} %; where the teacher "
        f"chooses among five lengths, {share[reranked[0]]} %, and with four rounds {share[reranked[1]]} %, but at "
        f"{_list(speeds)} times the speed of its own greedy search, a sentence at a time on {result['machine']}."
    )


def _holds(true: bool) -> str:
    return "holds" if true else "does not hold"


def _judge_speed(results: list[Result]) -> str:
    said, reached = [], {"one pass": 0.0, "ten rounds": 0.0}
    for result in results:
        ratios, rounds = _ratios(result, GREEDY, ONE_PASS), _ratios(result, GREEDY, (TEN,))
        reached["ten rounds"] = max(reached["ten rounds"], rounds[1][1])
        launched = any(row["name"] == GREEDY + LAUNCHED for row in result["results"])
        plain = _ratios(result, GREEDY + LAUNCHED, tuple(name + LAUNCHED for name in ONE_PASS)) if launched else {}
        reached["one pass"] = max(reached["one pass"], *(of_all[1][1] for of_all in (ratios, plain) if of_all))
        how = ", both replayed from recordings as is usual here" if launched else ""
        ten = _list([f"{low:.1f}" for low, _ in rounds.values()])
        said.append(f"On {result['machine']}{how}, one pass is {_in_words(ratios)}; ten rounds {ten} times as fast.")
        if launched:
            said.append(f"Both launched kernel by kernel, as plain PyTorch does it, one pass is {_in_words(plain)}.")
            said.append(_explain_recording(result))
    found = [
        f"{claimed} times for {what} {_holds(reached[what] >= claimed)}" for what, claimed in CLAIMED_SPEED.items()
    ]
    return (
        f"- **Speed.** Papers report {CLAIMED_SPEED['one pass']} times the speed for one pass and "
        f"{CLAIMED_SPEED['ten rounds']} times for ten rounds, of a batch of one and of a decoder without much care. "
        f"Ours are against a cached greedy search of the same size. {' '.join(said)} So {_list(found)}."
    )


def _explain_recording(result: Result) -> str:
    """Why the two ways to use a GPU differ so much."""
    rows = {row["name"]: row for row in result["results"]}
    best = max(ONE_PASS, key=lambda name: float(rows[name]["score"]["value"]))
    times = {
        name: rows[name]["timings"][0]["milliseconds"] for how in ("", LAUNCHED) for name in (GREEDY + how, best + how)
    }
    return (
        f"A recording spares the search more, which launches every step: one sentence takes it {times[GREEDY]:.1f} in "
        f"place of {times[GREEDY + LAUNCHED]:.1f} ms, and {best} {times[best]:.1f} in place of "
        f"{times[best + LAUNCHED]:.1f}. Where both can be recorded, the smaller factor is what one pass gains."
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
