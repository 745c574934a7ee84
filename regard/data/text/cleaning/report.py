"""What cleaning has removed: the number of pairs and examples by rule, as JSON, HTML or text."""

import html
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from regard.data.text.cleaning.pair_rules import describe_damage, find_markup
from regard.data.text.cleaning.settings import RULES
from regard.data.text.readers import PairRecord

MAX_EXAMPLES = 20
EXAMPLE_CHARACTERS = 300
TEMPLATE = Path(__file__).with_name("report.html")


class Example(NamedTuple):
    """A removed pair: where it was read, its texts, and what the rule has found."""

    file: str
    line: int
    source: str
    target: str
    detail: str


class Report:
    """Counts and examples of the removed pairs.

    Attributes:
        total: Number of pairs read.
        removed: Number of removed pairs by rule.
        notes: What was learned from the corpus, and which rules were not applied.
    """

    def __init__(self) -> None:
        self.total = 0
        self.removed: Counter[str] = Counter()
        self.notes: list[str] = []
        self.conditions: dict[str, Any] = {}
        self._examples: dict[str, list[Example]] = {rule: [] for rule in RULES}
        self._random = random.Random(0)

    @property
    def kept(self) -> int:
        """Number of pairs that no rule removed."""
        return self.total - self.removed.total()

    def add(self, rule: str, record: PairRecord, detail: str = "") -> None:
        """Count a removed pair, and take it as an example with a probability that is the same for all."""
        self.removed[rule] += 1
        place = self._random.randrange(self.removed[rule])
        if place >= MAX_EXAMPLES:
            return
        source, target = map(shorten, record.pair)
        example = Example(record.file, record.line, source, target, detail or describe(rule, record))
        examples = self._examples[rule]
        if len(examples) < MAX_EXAMPLES:
            examples.append(example)
        else:
            examples[place] = example

    def examples(self, rule: str) -> Sequence[Example]:
        """Return at most `MAX_EXAMPLES` of the pairs that a rule removed, in the order of the corpus."""
        return sorted(self._examples[rule], key=lambda example: (example.file, example.line))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "pairs": self.total,
            "kept": self.kept,
            "removed": {rule: self.removed[rule] for rule in RULES},
            "notes": self.notes,
            **self.conditions,
            "examples": {rule: [e._asdict() for e in self.examples(rule)] for rule in RULES if self.removed[rule]},
        }

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"

    def summary(self) -> list[str]:
        """Return lines of text: the number of pairs kept, and of those removed by each rule."""
        share = self.kept / max(1, self.total)
        counts = [f"{rule}: {self.removed[rule]:,}" for rule in RULES if self.removed[rule]]
        return [f"{self.kept:,} of {self.total:,} pairs kept ({share:.1%})", *counts, *self.notes]

    def as_html(self) -> str:
        """Return a page without external resources."""
        rows = "".join(self._row(rule) for rule in RULES)
        sections = "".join(self._section(rule) for rule in RULES if self.removed[rule])
        settings = _table(self.conditions.get("settings", {}))
        return Template(TEMPLATE.read_text("utf-8")).substitute(
            total=f"{self.total:,}",
            kept=f"{self.kept:,}",
            share=f"{self.kept / max(1, self.total):.1%}",
            notes="".join(f"<p>{html.escape(note)}</p>" for note in self.notes),
            rows=rows,
            sections=sections,
            settings=settings,
            conditions=_table({key: value for key, value in self.conditions.items() if key != "settings"}),
        )

    def _row(self, rule: str) -> str:
        number, share = self.removed[rule], self.removed[rule] / max(1, self.total)
        name = f'<a href="#{rule}">{rule}</a>' if number else rule
        bar = f'<span class="bar" style="width:{100 * share:.2f}%"></span>' if number else ""
        return (
            f"<tr><th>{name}</th><td>{html.escape(RULES[rule])}</td><td class=number>{number:,}</td>"
            f"<td class=number>{share:.2%}</td><td class=share>{bar}</td></tr>\n"
        )

    def _section(self, rule: str) -> str:
        rows = "".join(
            f"<tr><td class=where>{html.escape(Path(example.file).name)}:{example.line}</td>"
            + "".join(f'<td dir="auto">{html.escape(text)}</td>' for text in (example.source, example.target))
            + f"<td class=found>{html.escape(example.detail)}</td></tr>\n"
            for example in self.examples(rule)
        )
        shown = len(self.examples(rule))
        which = f"all {shown:,}" if shown == self.removed[rule] else f"{shown} of {self.removed[rule]:,}, at random"
        return (
            f'<section id="{rule}"><h2>{rule}</h2><p>{html.escape(RULES[rule])} Removed pairs: {which}.</p>'
            "<table class=examples><tr><th>line</th><th>source</th><th>target</th><th>found</th></tr>"
            f"{rows}</table></section>\n"
        )


def shorten(text: str) -> str:
    """Return the start of a text, with control characters made visible."""
    start = text if len(text) <= EXAMPLE_CHARACTERS else f"{text[:EXAMPLE_CHARACTERS]}…"
    return "".join(
        character if character >= " " and not "\x7f" <= character <= "\x9f" else f"\\x{ord(character):02x}"
        for character in start
    )


def describe(rule: str, record: PairRecord) -> str:
    """Say what a rule found in a pair, if this can be seen from the pair alone."""
    if rule == "encoding":
        return next(filter(None, map(describe_damage, record.pair)), "")
    if rule == "markup":
        return shorten(next(filter(None, map(find_markup, record.pair)), ""))
    if rule == "length":
        return " and ".join(f"{len(text):,}" for text in record.pair) + " characters"
    return ""


def _table(values: Mapping[str, Any]) -> str:
    return "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(json.dumps(value, ensure_ascii=False))}</td></tr>\n"
        for key, value in values.items()
    )
