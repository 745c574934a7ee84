"""Measure the calibration of confidences, and the precision and recall of flags, on held-out sentences.

    python benchmarks/confidence.py RUN                                  the built-in corpus: `regard demo`
    python benchmarks/confidence.py RUN --valid A.en A.de --test B.en B.de --name tatoeba-en-de
    ... --other C.en C.zh                                                also text of another kind
    ... --faults D.en D.de                                               pairs for the flags instead of the test data

The confidence is fitted to translations of the validation data and measured on the test data. For the flags, faults are
made at random: in references, in the settings of the search, and in the sources; the unchanged sentences count as
false alarms if they are flagged. The results of the run named NAME are added to
benchmarks/results/confidence.json.
"""

import argparse
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, environment, save_result

from regard.data.builtin.corpus import load_pairs
from regard.data.text.languages import SourceLanguageCheck
from regard.data.text.readers import Pair, read_pairs
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.evaluation.calibration import (
    agrees,
    calibrate_translator,
    calibration_error,
    find_agreement,
    reliability,
)
from regard.pipelines.confidence import Calibration, CopiedWords
from regard.pipelines.quality_flags import FLAGS, LANGUAGE, NAME, NUMBER, REPETITION, TRUNCATION, find_flags
from regard.pipelines.translator import Translator

THRESHOLDS = (0.2, 0.4, 0.6)
MIN_TOKENS = 4
"""Tokens of the shortest translation that is cut."""
FAULTY_PAIRS = 40_000
"""Most sentence pairs in which faults are made."""
UNITS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]")
CASED = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+")
Fault = Callable[[Pair, random.Random], Pair | None]


def main() -> None:
    """Measure one run and save its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    for name in ("--valid", "--test", "--other", "--faults"):
        parser.add_argument(name, type=Path, nargs=2, metavar=("SOURCE", "REFERENCE"))
    parser.add_argument("--name", default="demo")
    parser.add_argument("--sentences", type=int, default=2000, help="most sentences of each set")
    parser.add_argument("--beam", type=int, default=1)
    arguments = parser.parse_args()
    translator = Translator.load(arguments.run)
    settings = translator.resolve_settings(SearchSettings(beam=arguments.beam))
    valid, test = (
        load_pairs(split) if files is None else list(read_pairs(*files))
        for split, files in (("valid", arguments.valid), ("test", arguments.test))
    )
    valid, test = valid[: arguments.sentences], test[: arguments.sentences]
    faulty = list(read_pairs(*arguments.faults))[:FAULTY_PAIRS] if arguments.faults else test
    calibration = calibrate_translator(translator, valid, settings)
    result: dict[str, Any] = {
        "languages": list(translator.languages),
        "beam": arguments.beam,
        "validation": calibration.error.model_dump(),
        "test": measure_calibration(translator, calibration, test, settings),
        "flags": measure_flags(translator, calibration.names, test, faulty, settings),
    }
    if arguments.other:
        other = list(read_pairs(*arguments.other))[: arguments.sentences]
        result["other"] = measure_calibration(translator, calibration, other, settings)
    path = RESULTS / "confidence.json"
    saved = json.loads(path.read_text("utf-8")) if path.exists() else {"runs": {}}
    save_result({"runs": saved["runs"] | {arguments.name: result | environment("cpu")}}, "confidence")


def measure_calibration(
    translator: Translator, calibration: Calibration, pairs: Sequence[Pair], settings: DecodingSettings
) -> dict[str, Any]:
    """Return calibration errors, the bins of the sentences, and what a threshold lists for review."""
    found = translator.hypotheses([pair.source for pair in pairs], settings, split=False)
    hypotheses = [calibration.apply(n_best[0]) for n_best in found]
    references = translator.vocabularies.target.encode_batch([pair.target for pair in pairs])
    right = find_agreement([hypothesis.tokens for hypothesis in hypotheses], references)
    labels = np.array(
        [agrees(int(one.sum()), len(one), len(tokens)) for one, tokens in zip(right, references, strict=True)]
    )
    confidences = np.array([hypothesis.confidence for hypothesis in hypotheses])
    tokens = np.concatenate([hypothesis.token_confidences for hypothesis in hypotheses])
    token_labels = np.concatenate(right)
    wrong = max(1, int((~labels).sum()))
    return {
        "sentences": len(labels),
        "tokens": len(token_labels),
        "sentence_ece": calibration_error(confidences, labels),
        "token_ece": calibration_error(tokens, token_labels),
        "right_sentences": float(labels.mean()),
        "right_tokens": float(token_labels.mean()),
        "bins": [list(one) for one in reliability(confidences, labels)],
        "token_bins": [list(one) for one in reliability(tokens, token_labels)],
        "reject": {
            str(threshold): {
                "listed": float((confidences < threshold).mean()),
                "wrong_found": float((~labels & (confidences < threshold)).sum() / wrong),
                "right_of_others": float(labels[confidences >= threshold].mean()),
            }
            for threshold in THRESHOLDS
        },
    }


# Faults


def repeat_phrase(pair: Pair, rng: random.Random) -> Pair | None:
    """Repeat a phrase of the reference: one word 3 to 6 times, two words 2 to 5 times, longer ones 2 to 4 times."""
    units = list(UNITS.finditer(pair.target))
    words = [i for i, unit in enumerate(units) if unit[0][0].isalnum()]
    length = rng.randint(1, 6)
    starts = [i for i in words if all(j in words for j in range(i, i + length))]
    if not starts:
        return None
    first = rng.choice(starts)
    start, end = units[first].start(), units[first + length - 1].end()
    times = rng.randint(*{1: (3, 6), 2: (2, 5)}.get(length, (2, 4)))
    space = " " if pair.target[start].isascii() else ""
    repeated = space.join([pair.target[start:end]] * times)
    return pair._replace(target=pair.target[:start] + repeated + pair.target[end:])


def drop_number(pair: Pair, rng: random.Random) -> Pair | None:
    """Remove from the reference a number that the source contains too, or change one of its digits."""
    shared = [match for match in re.finditer(r"\d+", pair.target) if match[0] in re.findall(r"\d+", pair.source)]
    if not shared:
        return None
    match = rng.choice(shared)
    changed = str(rng.choice([digit for digit in range(10) if str(digit) != match[0][0]])) + match[0][1:]
    return pair._replace(target=pair.target[: match.start()] + rng.choice(["", changed]) + pair.target[match.end() :])


def drop_name(pair: Pair, rng: random.Random) -> Pair | None:
    """Remove from the reference a word with a capital letter that the source contains within a sentence too."""
    shared = [word for word in CASED.findall(pair.source) if re.search(rf"\b{word}", pair.target)]
    if not shared:
        return None
    name = rng.choice(shared)
    return pair._replace(target=re.sub(rf"\b{name}", "", pair.target))


FAULTS: dict[str, tuple[Fault, re.Pattern[str]]] = {
    REPETITION: (repeat_phrase, re.compile("")),
    NUMBER: (drop_number, re.compile(r"\d")),
    NAME: (drop_name, CASED),
}
"""How a fault is made, and what the source of a sentence contains that could be reported."""


def measure_flags(
    translator: Translator,
    names: CopiedWords,
    translated: Sequence[Pair],
    pairs: Sequence[Pair],
    settings: DecodingSettings,
) -> dict[str, Any]:
    """Return for each flag the share of faults that it finds, and the share of unchanged sentences that it reports.

    The search is limited for the sources of `translated`; the other faults are made in `pairs`. Unchanged sentences are
    all that could be reported: for numbers and names, those whose source has one. Precision is that of a set with as
    many faulty sentences as others.
    """
    results: dict[str, Any] = {}
    for flag in FLAGS:
        if flag == TRUNCATION:
            found, alarms = _truncations(translator, translated, settings)
        elif flag == LANGUAGE:
            check = SourceLanguageCheck(translator.languages[0])
            found, alarms = ([bool(check.find_other(pair[side])) for pair in pairs] for side in (1, 0))
        else:
            rng, fault, candidates = random.Random(f"seed 1 {flag}"), *FAULTS[flag]
            changed = [one for pair in pairs if (one := fault(pair, rng)) is not None]
            found = [flag in find_flags(*pair, names) for pair in changed]
            alarms = [flag in find_flags(*pair, names) for pair in pairs if candidates.search(pair.source)]
        recall, alarm_rate = (sum(one) / len(one) if one else None for one in (found, alarms))
        precision = recall / (recall + alarm_rate) if recall and alarm_rate is not None else None
        results[flag] = {
            "faults": len(found),
            "recall": recall,
            "unchanged": len(alarms),
            "false_alarms": alarm_rate,
            "precision": precision,
        }
    return results


def _truncations(
    translator: Translator, pairs: Sequence[Pair], settings: DecodingSettings
) -> tuple[list[bool], list[bool]]:
    """Return whether translations limited to half of their length are flagged, and whether complete ones are."""
    sources = [pair.source for pair in pairs]
    complete = [best[0] for best in translator.hypotheses(sources, settings, split=False)]
    by_length: dict[int, list[str]] = {}
    for source, hypothesis in zip(sources, complete, strict=True):
        if len(hypothesis.tokens) >= MIN_TOKENS:
            by_length.setdefault(len(hypothesis.tokens) // 2, []).append(source)
    found = [
        best[0].truncated
        for length, rows in by_length.items()
        for best in translator.hypotheses(rows, settings.changed(max_length=length), split=False)
    ]
    return found, [hypothesis.truncated for hypothesis in complete]


if __name__ == "__main__":
    main()
