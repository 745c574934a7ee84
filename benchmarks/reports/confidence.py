"""Calibration of confidences, and precision and recall of flags: tables of the guide in English and Chinese."""

from collections.abc import Iterator

from .markdown import cite, paragraphs, table
from .results import Result

MIN_FAULTS = 50
"""Number of faults from which a share is reported."""
TEXTS = {
    "en": {
        "fitted": "Fitted to validation sentences, measured on test sentences:",
        "other": "{name}, other text",
        "calibration": "model and text|sentences|right sentences|ECE of sentences|right tokens|ECE of tokens",
        "review": "What a threshold lists for review, flags aside, the share of the wrong sentences that it finds, and "
        "the share of right sentences among the others:",
        "reject": "model and text|`--reject`|listed|wrong sentences found|right among the others",
        "limits": "Confidences hold for text of the kind that they were calibrated on: see the last row of each table.",
        "faults": "Sentences with faults made at random: phrases repeated in references, numbers dropped or changed, "
        "names dropped, the search limited to half of the length, and sentences of the target language as sources. "
        "Recall is the share of them that is flagged. Unchanged sentences with references that are flagged are false "
        "alarms; for numbers and names, only sentences whose source has one count. Precision is that of a set with as "
        "many faulty sentences as others:",
        "flags": "flag|model|faults|recall|unchanged|false alarms|precision",
        "end": ".",
    },
    "zh": {
        "fitted": "用验证集的句子拟合，在测试集的句子上测量：",
        "other": "{name}，另一类文本",
        "calibration": "模型与文本|句数|正确的句子|句子的 ECE|正确的词元|词元的 ECE",
        "review": "不计标记，各个阈值列出多少句子，找到多少错误的句子，其余句子的正确率：",
        "reject": "模型与文本|`--reject`|列出|找到的错误句子|其余句子的正确率",
        "limits": "置信度只适用于校准时那一类文本，见各表的最后一行。",
        "faults": "随机制造的错误包括：重复参考译文里的短语，删去或改动数字，删去名称，把搜索长度限制为一半，"
        "以及把目标语言的句子当作原文。"
        "召回率是被标记的错误所占的比例；配有参考译文、未经改动的句子被标记，就是误报，数字和名称只计原文里有数字或名称的句子。"
        "精确率按错误句与无错句各占一半计算：",
        "flags": "标记|模型|错误|召回率|无错句|误报|精确率",
        "end": "。",
    },
}


def write_calibration(result: Result, language: str = "en") -> str:
    """Calibration errors on test sentences, and what thresholds list for review."""
    texts = TEXTS[language]
    parts = [
        (texts["other"].format(name=name) if part == "other" else name, run[part]) for name, part, run in _parts(result)
    ]
    rows = [(name, *_calibration_row(entry)) for name, entry in parts]
    rejects = [
        (name, threshold, *(_percent(shares[key]) for key in ("listed", "wrong_found", "right_of_others")))
        for name, entry in parts
        for threshold, shares in entry["reject"].items()
    ]
    return paragraphs(
        texts["fitted"],
        table(texts["calibration"].split("|"), rows),
        texts["review"],
        table(texts["reject"].split("|"), rejects),
        f"{texts['limits']} {_cite_runs(result, texts['end'])}",
    )


def write_flags(result: Result, language: str = "en") -> str:
    """Precision and recall of each flag on sentences with faults made at random."""
    texts = TEXTS[language]
    rows = [
        (
            f"`{flag}`",
            name,
            f"{entry['faults']:,}",
            _percent(entry["recall"]),
            f"{entry['unchanged']:,}",
            _percent(entry["false_alarms"]),
            _percent(entry["precision"]),
        )
        for name, run in result["runs"].items()
        for flag, entry in run["flags"].items()
        if entry["faults"] >= MIN_FAULTS
    ]
    return paragraphs(texts["faults"], table(texts["flags"].split("|"), rows), _cite_runs(result, texts["end"]))


def _cite_runs(result: Result, end: str) -> str:
    """Cite the measurement of each run."""
    return "; ".join(f"{name}: {cite(run)}" for name, run in result["runs"].items()) + end


def _parts(result: Result) -> Iterator[tuple[str, str, Result]]:
    """Yield the name, the part and the run of each measurement, those of other text last."""
    for part in ("test", "other"):
        for name, run in result["runs"].items():
            if part in run:
                yield name, part, run


def _calibration_row(entry: Result) -> tuple[str, ...]:
    return (
        f"{entry['sentences']:,}",
        _percent(entry["right_sentences"]),
        f"{entry['sentence_ece']:.3f}",
        _percent(entry["right_tokens"]),
        f"{entry['token_ece']:.3f}",
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
