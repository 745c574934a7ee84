"""Every rule removes what it is for and keeps what is similar."""

import numpy as np
import pytest

from regard.data.builtin.corpus import load_pairs
from regard.data.text.cleaning import cleaner as cleaner_module
from regard.data.text.cleaning.characters import SIMPLIFIED, TRADITIONAL
from regard.data.text.cleaning.cleaner import Cleaner
from regard.data.text.cleaning.corpus_rules import expected_variant, wrong_variant
from regard.data.text.cleaning.pair_rules import describe_damage, find_markup, is_mojibake
from regard.data.text.cleaning.settings import RULES, CleaningSettings
from regard.data.text.cleaning.texts import Texts
from regard.data.text.readers import Pair, PairRecord
from regard.errors import UserError

GOOD = Pair("The cat sleeps on the sofa.", "Die Katze schläft auf dem Sofa.")
LONGER = Pair("Yes, of course.", "Ja, aber nur dann, wenn du mir versprichst, dass wir morgen zusammen dorthin gehen.")
USUAL = [
    GOOD,
    Pair("Where is the station?", "Wo ist der Bahnhof?"),
    Pair("I have bought 3 apples.", "Ich habe 3 Äpfel gekauft."),
    Pair("He said \u201cfun\u201d \u2026", "Er sagte \u201eSpaß\u201c \u2026"),
    Pair("AT&T & friends: a < b", "AT&T & Freunde: es gilt a < b"),
]


def removed(
    pairs: list[Pair], codes: tuple[str, str] = ("en", "de"), excluded: tuple[str, ...] = (), **values: object
) -> list[str]:
    """Return the rule that removed each pair, "" for those that were kept."""
    records = [PairRecord(pair, "file", line) for line, pair in enumerate(pairs, start=1)]
    cleaner = Cleaner(CleaningSettings.parse(values, "test"), codes, excluded)
    kept = [bool(one) for _, mask in cleaner.clean(lambda: iter(records)) for one in mask]
    rules = {example.line: rule for rule in RULES for example in cleaner.report.examples(rule)}
    assert [line for line, one in enumerate(kept, start=1) if not one] == sorted(rules)
    return [rules.get(line, "") for line in range(1, len(pairs) + 1)]


def test_usual_pairs_are_kept() -> None:
    assert removed(USUAL) == [""] * len(USUAL)


@pytest.mark.parametrize(
    ("rule", "pair"),
    [
        ("empty", Pair("Hello.", " \u200b ")),
        ("empty", Pair("", "Hallo.")),
        ("encoding", Pair("The caf\ufffd is open today.", "Das Café hat heute geöffnet.")),
        ("encoding", Pair("The bell\x07 rings.", "Die Glocke läutet.")),
        ("encoding", Pair("The cafe is open today.", "Das CafÃ© hat heute geÃ¶ffnet.")),
        ("encoding", Pair("He didnâ€™t come.", "Er kam nicht.")),
        ("markup", Pair("A <b>big</b> house", "Ein großes Haus")),
        ("markup", Pair("A big house", "Ein&nbsp;großes Haus")),
        ("markup", Pair("A big house", '<span class="x">Ein großes Haus')),
        ("letters", Pair("2024-05-06 12:30", "06.05.2024 12:30")),
        ("length", Pair("long word " * 101, "langes Wort " * 101)),
        ("length", Pair("x" * 2001, "y" * 2001)),
        ("length", Pair("x" * 200_000, "y" * 200_000)),
        ("copy", Pair("The cat sleeps.", "the cat sleeps")),
        ("copy", Pair("The cat sleeps on the new sofa.", "The cat sleeps on the old sofa.")),
        ("script", Pair("The cat sleeps.", "Кошка спит.")),
        (
            "ratio",
            Pair(
                "Yes, of course.",
                "Ja, aber nur dann, wenn du mir versprichst, dass wir morgen zusammen dorthin gehen.",
            ),
        ),
    ],
)
def test_bad_pair_is_removed(rule: str, pair: Pair) -> None:
    assert removed([*USUAL, pair]) == [""] * len(USUAL) + [rule]


def test_longest_allowed_pair_is_kept() -> None:
    assert removed([GOOD], max_words=6) == [""]
    assert removed([GOOD], max_words=5) == ["length"]


def test_repeated_pairs_are_removed_except_the_first() -> None:
    varied = Pair("THE CAT sleeps on the sofa", " Die Katze schläft auf dem Sofa!")
    other = Pair(GOOD.source, "Auf dem Sofa schläft die Katze.")
    pairs = [GOOD, other, varied, GOOD]
    assert removed(pairs) == ["", "", "near-duplicate", "duplicate"]
    assert removed(pairs, duplicates="exact") == ["", "", "", "duplicate"]
    assert removed(pairs, duplicates=None) == [""] * 4


def test_removed_pair_does_not_count_as_the_first() -> None:
    assert removed([Pair("A  cat\x07", "Eine Katze"), Pair("A cat", "Eine Katze")]) == ["encoding", ""]


def test_repetitions_are_found_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "CHUNK", 2)
    assert removed([*USUAL, *USUAL]) == [""] * 5 + ["duplicate"] * 5


def test_texts_of_excluded_files_are_removed_on_either_side() -> None:
    pairs = [*USUAL, Pair("A new sentence", "wo ist der bahnhof")]
    found = removed(pairs, excluded=("the cat sleeps on the SOFA", "Wo ist der Bahnhof?"))
    assert found == ["overlap", "overlap", "", "", "", "overlap"]


@pytest.mark.parametrize("rule", ["encoding", "markup", "letters", "copies", "script", "ratio"])
def test_rules_can_be_turned_off(rule: str) -> None:
    bad = {
        "encoding": Pair("The bell\x07 rings.", "Die Glocke läutet."),
        "markup": Pair("A <b>big</b> house", "Ein großes Haus"),
        "letters": Pair("1234 5678 a", "10 zu 20 Uhr"),
        "copies": Pair("The cat sleeps.", "The cat sleeps."),
        "script": Pair("The cat sleeps.", "Кошка спит."),
        "ratio": Pair(
            "Yes, of course.", "Ja, aber nur dann, wenn du mir vorher versprichst, dass wir morgen hingehen."
        ),
    }[rule]
    off = False if rule in ("encoding", "markup") else None
    assert removed([*USUAL, bad], **{rule: off}) == [""] * 6
    assert removed([*USUAL, bad])[-1]


def test_mojibake_is_not_confused_with_quotation_marks() -> None:
    damaged = ["Ã¤", "Ã\x9f", "â€œquoteâ€\x9d", "Â£5", "Ñ\x80ÑƒÑ\x81Ñ\x81ÐºÐ¸Ð¹", "à€€ Ã¤", "ä¸\xadæ–‡", "NÂ°\xa05"]
    assert [text for text in damaged if not is_mojibake(text)] == []
    intact = ["„Spaß“", "GROẞ“", "café…”", "«fiancé»…", "ÄÖÜ“", "naïve", "日本語", "Ã", "à€€ à€€", "São Paulo", "BMÖ“…"]
    assert [text for text in intact if is_mojibake(text)] == []
    assert describe_damage("a\x07") == "control character U+0007"
    assert describe_damage("Ã¤") == "text decoded with a wrong encoding"


def test_markup_is_not_confused_with_comparisons_names_and_tokenised_text() -> None:
    tags = ["<br>", "</p>", "<br/>", '<a href="x">', "<x:y />", "&#160;", "&#xA0;", "R&amp;D", "<!-- x -->", "<B>"]
    assert [text for text in tags if not find_markup(text)] == []
    plain = [
        "a < b > c",
        "usage: cp <file> <folder>",
        "Q&A",
        "kid &apos;s &quot; &amp; x",
        "l&apos; eau",
        "<3",
        "AT&T; x",
    ]
    assert [text for text in plain if find_markup(text)] == []


@pytest.mark.parametrize(
    ("text", "expected", "wrong"),
    [
        ("我们学习汉语", SIMPLIFIED, False),
        ("我們學習漢語", SIMPLIFIED, True),
        ("我們學習漢語", TRADITIONAL, False),
        ("我们學習汉語", SIMPLIFIED, True),
        ("我们學習汉語", TRADITIONAL, True),
        ("你好", SIMPLIFIED, False),
        ("hello", TRADITIONAL, False),
        ("这个学生说他叫陶喆", SIMPLIFIED, False),
    ],
)
def test_variants_of_chinese(text: str, expected: int, wrong: bool) -> None:
    assert wrong_variant(Texts([text]), expected).tolist() == [wrong]


def test_variant_follows_the_code_or_the_majority() -> None:
    assert [expected_variant(code) for code in ("zh", "zh-Hans", "zh_TW", "zt", "en-GB")] == [0, 1, 2, 2, 0]
    simple = [
        Pair(f"We study {x}.", f"我们学习{y}语") for x, y in (("Chinese", "汉"), ("English", "英"), ("German", "德"))
    ]
    traditional = Pair("We study Japanese.", "我們學習日語")
    assert removed([*simple, traditional], ("en", "zh")) == ["", "", "", "variant"]
    assert removed([*simple, traditional], ("en", "zh-Hant")) == ["variant"] * 3 + [""]
    assert removed([*simple, traditional], ("en", "zh"), variant=False) == [""] * 4


def test_scripts_of_unknown_languages_are_those_of_most_texts() -> None:
    pairs = [Pair(f"word {chr(97 + n) * 3}", f"слово {chr(0x430 + n) * 3}") for n in range(20)]
    exchanged = Pair("слово", "word")
    assert removed([*pairs, exchanged], ("", "")) == [""] * 20 + ["script"]


def test_rules_of_the_second_pass_need_enough_pairs() -> None:
    records = [PairRecord(pair, "file", 1) for pair in USUAL]
    cleaner = Cleaner(CleaningSettings(), ("en", "de"))
    list(cleaner.clean(lambda: iter(records)))
    assert "need 1,000 different pairs; there are 5" in cleaner.report.notes[0]


def test_misaligned_and_exchanged_pairs_are_found_by_what_is_usual_in_the_corpus() -> None:
    pairs = load_pairs("train", 3000)
    shifted = [Pair(pairs[n].source, pairs[n + 100].target) for n in range(100)]
    exchanged = [Pair(target, source) for source, target in pairs[200:250]]
    found = removed_numbers([*pairs, *shifted, *exchanged], script=None)
    assert found[:3000].count("") > 2990
    assert found[3000:3100].count("misaligned") >= 75
    assert found[3100:].count("language") == 50


def removed_numbers(pairs: list[Pair], **values: object) -> list[str]:
    records = [PairRecord(pair, "file", line) for line, pair in enumerate(pairs, start=1)]
    cleaner = Cleaner(CleaningSettings.parse(values, "test"), ("en", "zh"))
    reasons = [""] * len(pairs)
    add = cleaner.report.add

    def note(rule: str, record: PairRecord, detail: str = "") -> None:
        reasons[record.line - 1] = rule
        add(rule, record, detail)

    cleaner.report.add = note  # type: ignore[method-assign]
    list(cleaner.clean(lambda: iter(records)))
    return reasons


def test_unrelated_sides_do_not_count_as_misaligned() -> None:
    """If the sides of a corpus do not predict each other, the rule is not applied."""
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a in "abcdefghijklmnopqr" for b in "abcdefghijklmnopqr"]
    pairs = [Pair(" ".join(rng.choice(words, 6)), " ".join(rng.choice(words, 6)) + " x") for _ in range(1500)]
    records = [PairRecord(pair, "file", 1) for pair in pairs]
    cleaner = Cleaner(CleaningSettings(), ("", ""))
    list(cleaner.clean(lambda: iter(records)))
    assert cleaner.report.removed["misaligned"] == 0
    assert any("misaligned is not applied" in note for note in cleaner.report.notes)


def test_foreign_texts_are_found_with_and_without_py3langid(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("py3langid")
    nouns = ["house", "garden", "river", "mountain", "letter", "village", "window", "doctor", "teacher", "forest"]
    others = ["Haus", "Garten", "Fluss", "Berg", "Brief", "Dorf", "Fenster", "Arzt", "Lehrer", "Wald"]
    verbs = [("sees", "sieht"), ("loves", "liebt"), ("finds", "findet"), ("knows", "kennt")]
    adjectives = [("old", "alte"), ("new", "neue"), ("small", "kleine"), ("white", "weiße")]
    pairs = [
        Pair(f"The {a} {n} {v} every {b} {m} of this country.", f"Der {x} {o} {w} auch jedes {y} {p} von diesem Land.")
        for (a, x), (b, y) in zip(adjectives * 4, sorted(adjectives * 4), strict=True)
        for n, o in zip(nouns, others, strict=True)
        for (v, w) in verbs
        for m, p in zip(nouns[:3], others[:3], strict=True)
    ]
    foreign = Pair(
        "The old doctor finds every small village.", "Le vieux médecin trouve aussi chaque petit village du pays."
    )
    assert len(pairs) > 1000
    assert removed_one(pairs, foreign) == "language"
    monkeypatch.setattr("regard.data.text.cleaning.language.load_detector", lambda code: None)
    assert removed_one(pairs, foreign) == "language"


def removed_one(pairs: list[Pair], bad: Pair) -> str:
    records = [PairRecord(pair, "file", line) for line, pair in enumerate([*pairs, bad], start=1)]
    cleaner = Cleaner(CleaningSettings(misaligned=None), ("en", "de"))
    list(cleaner.clean(lambda: iter(records)))
    assert cleaner.report.kept >= len(pairs) - 5
    return next(rule for rule in RULES for e in cleaner.report.examples(rule) if e.line == len(records))


def test_order_of_the_kept_pairs_is_that_of_the_corpus() -> None:
    pairs = load_pairs("train", 500)
    records = [PairRecord(pair, "file", line) for line, pair in enumerate(pairs + pairs[::-1], start=1)]
    kept = [
        record.pair
        for part, mask in Cleaner(CleaningSettings(), ("en", "zh")).clean(lambda: iter(records))
        for record, one in zip(part, mask, strict=True)
        if one
    ]
    assert kept == pairs


def test_changed_corpus_is_an_error() -> None:
    for second, message in ((USUAL[:3], "file: changed while"), ([], "the corpus changed while")):
        passes = iter([USUAL, second])
        cleaner = Cleaner(CleaningSettings())
        with pytest.raises(UserError, match=f"{message} it was being cleaned"):
            list(cleaner.clean(lambda passes=passes: (PairRecord(pair, "file", 1) for pair in next(passes))))


def test_report_has_the_value_that_a_rule_compares() -> None:
    records = [PairRecord(pair, "file", line) for line, pair in enumerate([*USUAL, LONGER], start=1)]
    cleaner = Cleaner(CleaningSettings(), ("en", "de"))
    list(cleaner.clean(lambda: iter(records)))
    (example,) = cleaner.report.examples("ratio")
    assert example.line == len(records)
    assert float(example.detail) > 1


def test_report_has_counts_examples_and_no_external_resources() -> None:
    records = [PairRecord(Pair("<script>alert(1)</script> x", "y"), "dir/file.tsv", 3), PairRecord(GOOD, "file.tsv", 4)]
    cleaner = Cleaner(CleaningSettings(), ("en", "de"))
    list(cleaner.clean(lambda: iter(records)))
    page = cleaner.report.as_html()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert "http" not in page
    assert "file.tsv:3" in page
    values = cleaner.report.as_dict()
    assert (values["pairs"], values["kept"], values["removed"]["markup"]) == (2, 1, 1)
    assert values["examples"]["markup"][0]["detail"] == "<script>"
    assert cleaner.report.summary()[:2] == ["1 of 2 pairs kept (50.0%)", "markup: 1"]
