"""HTML keeps its tags, and its text is the translation of the text."""

import html
import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.serving.html_documents import Page
from regard.serving.messages import Alignment, Translation

WORD = re.compile(r"\S+")


def swap(sentence: str) -> Translation:
    """A translation into capitals with the words in the opposite order, and its alignment."""
    words = list(WORD.finditer(sentence))
    text = " ".join(word[0].upper() for word in reversed(words))
    spans = [match.span() for match in WORD.finditer(text)]
    size = len(words)
    weights = [[float(j == size - 1 - i) for j in range(size)] + [0.0] for i in range(size)]
    sources = [word.span() for word in words]
    alignment = Alignment(weights, [word[0] for word in words], text.split(), sources, spans)
    return Translation(text, 0.0, size, alignment)


def translate(text: str) -> str:
    page = Page(text, lambda sentence: True)
    return page.render([swap(sentence) for sentence, _ in page.sentences])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("plain words", "WORDS PLAIN"),
        ("<p>one two</p>\n<p>three</p>", "<p>TWO ONE</p>\n<p>THREE</p>"),
        ("one <b>two</b> three", "THREE <b>TWO</b> ONE"),
        ('see <a href="x?a=1&amp;b=2">this page</a> now', 'NOW <a href="x?a=1&amp;b=2">PAGE THIS</a> SEE'),
        ("<b>all of it</b>", "<b>IT OF ALL</b>"),
        ("<b>one <i>two</i></b> three", "THREE <b><i>TWO</i> ONE</b>"),
        ("one &lt; two &amp; three", "THREE &amp; TWO &lt; ONE"),
        ("one<br/>two three", "ONE<br/>THREE TWO"),
        ("run <code>ls -l</code> now", "<code>ls -l</code> NOW RUN"),
        ("<script>var a = '<b>';</script>one two", "<script>var a = '<b>';</script>TWO ONE"),
        ('<span translate="no">Ann Lee</span> went home', '<span translate="no">Ann Lee</span> HOME WENT'),
        ("<!-- note -->one two<!-- end -->", "<!-- note -->TWO ONE<!-- end -->"),
        ("two <b>one<code>x", "<b>ONE TWO<code>x"),
        ("one two <img src=x>", "TWO ONE <img src=x>"),
        ("a < b and c", "C AND B &lt; A"),
        ("<p>  spaced\n  text </p>", "<p> TEXT SPACED </p>"),
        ("<ul><li>one two</li><li>&nbsp;</li></ul>", "<ul><li>TWO ONE</li><li>&nbsp;</li></ul>"),
        ("", ""),
        ("<p></p>", "<p></p>"),
        ("<p>--- &amp; ---</p>", "<p>--- &amp; ---</p>"),
        ("<B>one</B> two", "TWO <B>ONE</B>"),
    ],
)
def test_tags_go_with_their_words(source: str, target: str) -> None:
    assert translate(source) == target


def test_only_sentences_with_elements_within_need_their_alignment() -> None:
    page = Page("<p>one two. Three.</p><p>four <b>five</b></p>", lambda sentence: True)
    assert page.sentences == [("one two.", False), ("Three.", False), ("four five", True)]


PIECES = st.lists(
    st.sampled_from(
        [
            *("one", "two ", " three. ", "Four", "é", "\n", "&amp;", "<", ">", "<!-- c -->", "<img>"),
            *("<b>", "</b>", "<i class='x y'>", "</i>", '<a href="u">', "</a>", "<p>", "</p>", "<br>"),
            *("<code>x", "</code>"),
        ]
    ),
    max_size=25,
).map("".join)


def tags(text: str) -> list[str]:
    return sorted(re.findall(r"<!--.*?-->|</?[a-z][^<>]*>", text))


@given(PIECES)
def test_no_tag_is_lost_or_made_up(text: str) -> None:
    assert tags(translate(text)) == tags(text)


@given(PIECES)
def test_the_text_of_the_answer_is_the_translation_of_the_text(text: str) -> None:
    page = Page(text, lambda sentence: True)
    translations = [swap(sentence) for sentence, _ in page.sentences]
    words = [word for one in translations for word in one.text.split()]
    answer = page.render(translations)
    shown = html.unescape(re.sub(r"<code>.*?(</code>|\Z)|<!--.*?-->|</?[a-z][^>]*>", "", answer, flags=re.S | re.I))
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize("unit", ["<b>a</b>", "<a '", '<a "', "<!--", "<code>", "<", "<b>", "</b>", "a<b>"])
def test_hostile_markup_takes_no_long_time(unit: str) -> None:
    began = time.process_time()
    translate(unit * (10_000 // len(unit)))
    assert time.process_time() - began < 5


def sentences_of(texts: Sequence[str]) -> list[str]:
    return [sentence for text in texts for sentence, _ in Page(text, lambda s: True).sentences]


def test_white_space_of_markup_ends_no_sentence() -> None:
    assert sentences_of(["<p>one\n   two\nthree</p>"]) == ["one two three"]
