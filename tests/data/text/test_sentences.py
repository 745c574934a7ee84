"""The sentence splitter: no characters are lost, and joined translations have the spacing of their script."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text.sentences import LengthWarnings, length_warning, single_sentence, split_sentences

TEXTS = st.text(
    alphabet=st.sampled_from('aB.。!?？ \n\t\r\u2028\u3000’”"()é1🙂\x00\x1c\x85…,苹'), max_size=60
) | st.text(max_size=60)


@given(TEXTS)
def test_sentences_and_spaces_contain_the_complete_text(text: str) -> None:
    for split in (
        split_sentences(text),
        single_sentence(text),
        split_sentences(text, lambda sentence: len(sentence) <= 3),
    ):
        parts = [part for sentence in split.sentences for part in (sentence.text, sentence.space)]
        assert "".join([split.lead, *parts]) == text
        assert all(sentence.text == sentence.text.strip() != "" for sentence in split.sentences)
        assert all(not sentence.space.strip() for sentence in split.sentences)
        assert [text[a : a + len(s.text)] for a, s in zip(split.starts, split.sentences, strict=True)] == [
            sentence.text for sentence in split.sentences
        ]


@given(TEXTS)
def test_sentences_that_do_not_fit_are_divided(text: str) -> None:
    split = split_sentences(text, lambda sentence: len(sentence) <= 5)
    assert all(len(sentence.text) <= 5 for sentence in split.sentences)


@given(TEXTS, st.data())
def test_the_starts_of_joined_translations_are_correct(text: str, data: st.DataObject) -> None:
    split = split_sentences(text)
    translations = [data.draw(st.text(max_size=8)) for _ in split.sentences]
    joined, starts = split.join_with_starts(translations)
    assert joined == split.join(translations)
    assert [
        joined[a : a + len(translation)] for a, translation in zip(starts, translations, strict=True)
    ] == translations


@given(TEXTS)
def test_joining_the_sentences_themselves_gives_the_text(text: str) -> None:
    split = split_sentences(text, lambda sentence: len(sentence) <= 5)
    assert split.join([sentence.text for sentence in split.sentences]) == text


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n ", []),
        ("I love apples", ["I love apples"]),
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("Mr. Smith paid 3.5 dollars, e.g. for tea. Really?", ["Mr. Smith paid 3.5 dollars, e.g. for tea.", "Really?"]),
        ("J. R. Smith is here. So am I.", ["J. R. Smith is here.", "So am I."]),
        ("Wait... what? Yes.", ["Wait... what?", "Yes."]),
        ("我喜欢苹果。你呢？他说：“好。”然后走了。", ["我喜欢苹果。", "你呢？", "他说：“好。”", "然后走了。"]),
        ("first line\nsecond line\n\nthird", ["first line", "second line", "third"]),
        ("Das kostet z.B. 5 Euro. Gut.", ["Das kostet z.B. 5 Euro.", "Gut."]),
        ("She can swim. I love apples.", ["She can swim.", "I love apples."]),
        ("she can swim. i love apples.", ["she can swim.", "i love apples."]),
        ('"Stop!" he said. “Why?” she asked.', ['"Stop!" he said.', "“Why?” she asked."]),
        ("Wait… what? He… left. Yes… No", ["Wait… what?", "He… left.", "Yes…", "No"]),
        (
            "I said no. See No. 5. In Dec. 2020. In Dec. He",
            ["I said no.", "See No. 5.", "In Dec. 2020.", "In Dec.", "He"],
        ),
        ("So do I. By J. R. Smith. The U.S. Senate.", ["So do I.", "By J. R. Smith.", "The U.S. Senate."]),
        ("It opens at 5 p.m. She left. In 1990. OK", ["It opens at 5 p.m.", "She left.", "In 1990.", "OK"]),
        (
            "Am 5. Mai kam er. Der 1. Weltkrieg. Ich habe 5. Gut",
            ["Am 5. Mai kam er.", "Der 1. Weltkrieg.", "Ich habe 5.", "Gut"],
        ),
        ("1. Introduction. 2.1. Methods.", ["1. Introduction.", "2.1. Methods."]),
        ("...... Yes! ?! No", ["...... Yes!", "?! No"]),
        ("Really?! Yes!!! ok", ["Really?!", "Yes!!!", "ok"]),
        ("你好!我是王芳.你呢?", ["你好!", "我是王芳.", "你呢?"]),
        ("圆周率是３．１４．好。 iPhone好！", ["圆周率是３．１４．", "好。", "iPhone好！"]),
        ("他说……走了。“走吧！”他说。", ["他说……走了。", "“走吧！”", "他说。"]),
        ("क्या? हाँ। नहीं।", ["क्या?", "हाँ।", "नहीं।"]),
    ],
)
def test_sentence_ends(text: str, sentences: list[str]) -> None:
    assert [sentence.text for sentence in split_sentences(text).sentences] == sentences


@pytest.mark.parametrize(
    ("text", "translations", "joined"),
    [
        ("One. Two.", ["一。", "二。"], "一。二。"),
        ("一。二。", ["One.", "Two."], "One. Two."),
        ("One.  Two.", ["一。", "二。"], "一。  二。"),
        (" One.\n\tTwo. ", ["Eins.", "Zwei."], " Eins.\n\tZwei. "),
        ("One. Two.", ["一。", "Two."], "一。 Two."),
        ("One. Two.", ["하나.", "둘."], "하나. 둘."),
        ("你好!我来了.", ["Hello!", "Here I am."], "Hello! Here I am."),
        ("One. Two.", ["用iPhone。", "“二”。"], "用iPhone。“二”。"),
    ],
)
def test_spacing_follows_the_text_and_the_script(text: str, translations: list[str], joined: str) -> None:
    assert split_sentences(text).join(translations) == joined


@pytest.mark.parametrize("unit", ["a", "a. ", ".", " ", '"', "a.\n", ". ", "。", "(", "a b"])
def test_the_time_is_linear_in_the_length_of_the_text(unit: str) -> None:
    """The same characters take about as long in one text as in 16; quadratic time would be 16 times as long."""

    def cpu_seconds(texts: list[str]) -> float:
        start = time.process_time()
        for text in texts:
            split_sentences(text, lambda sentence: len(sentence) <= 1000)
        return time.process_time() - start

    count = 2_000 // len(unit)
    apart = min(cpu_seconds([unit * count] * 16) for _ in range(3))
    assert min(cpu_seconds([unit * count * 16]) for _ in range(3)) < 5 * apart + 0.02


def test_texts_with_unusually_long_sentences_are_counted_and_the_first_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = LengthWarnings("line")
    warnings.add(1, None)
    assert warnings.message is None
    warnings.log()
    assert not caplog.records
    warnings.add(4, length_warning(30, 20, False))
    expected = "line 4: 30 tokens, but the longest training source has 20; the translation may be incomplete"
    assert warnings.message == expected
    warnings.add(6, length_warning(40, 20, False))
    warnings.add(7, None)
    warnings.add(9, length_warning(9, 20, True))
    assert warnings.message == f"{expected} (and 2 more)"
    warnings.log()
    assert [record.getMessage() for record in caplog.records] == [warnings.message]


@pytest.mark.parametrize(
    ("tokens", "longest", "divided", "start"),
    [
        (20, 20, False, None),
        (21, 20, False, "21 tokens, but"),
        (21, 20, True, "21 tokens, but"),
        (21, None, False, None),
        (20, 20, True, "too long for the model, so it was divided"),
        (5, None, True, "too long for the model, so it was divided"),
    ],
)
def test_sentences_longer_than_those_of_the_training_data_are_reported(
    tokens: int, longest: int | None, divided: bool, start: str | None
) -> None:
    warning = length_warning(tokens, longest, divided)
    assert warning is None if start is None else warning is not None and warning.startswith(start)
