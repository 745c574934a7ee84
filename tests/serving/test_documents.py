"""HTML documents keep their tags, which follow the words that they enclose."""

import html
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.documents.marked_text import Element, _render
from regard.serving.documents import HtmlDocument
from regard.serving.messages import Alignment, Translation

WORD = re.compile(r"\S+")


def reverse(sentence: str) -> Translation:
    """Translate into capital letters in reverse word order, with an alignment."""
    words = list(WORD.finditer(sentence))
    text = " ".join(word[0].upper() for word in reversed(words))
    spans = [match.span() for match in WORD.finditer(text)]
    size = len(words)
    weights = [[float(j == size - 1 - i) for j in range(size)] + [0.0] for i in range(size)]
    sources = [word.span() for word in words]
    alignment = Alignment(weights, [word[0] for word in words], text.split(), sources, spans)
    return Translation(text, 0.0, alignment)


def translate(text: str) -> str:
    document = HtmlDocument(text, lambda sentence: True)
    return document.render([reverse(sentence.text) for sentence in document.sentences])


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
        ("<b>one</b> <i>two</i> three", "THREE <i>TWO</i> <b>ONE</b>"),
        ("<b>one</b> two</b> three", "</b>THREE TWO <b>ONE</b>"),
    ],
)
def test_tags_enclose_the_translations_of_their_words(source: str, target: str) -> None:
    assert translate(source) == target


def test_only_text_blocks_with_inline_elements_need_alignments() -> None:
    document = HtmlDocument("<p>one two. Three.</p><p>four <b>five</b></p>", lambda sentence: True)
    assert [one[:2] for one in document.sentences] == [("one two.", False), ("Three.", False), ("four five", True)]


FRAGMENTS = st.lists(
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


@given(FRAGMENTS)
def test_all_tags_are_kept(text: str) -> None:
    assert tags(translate(text)) == tags(text)


@given(FRAGMENTS)
def test_all_translated_words_are_kept(text: str) -> None:
    document = HtmlDocument(text, lambda sentence: True)
    translations = [reverse(sentence.text) for sentence in document.sentences]
    words = [word for translation in translations for word in translation.text.split()]
    markup = r"<code>.*?(</code>|\Z)|<!--.*?-->|</?[a-z][^>]*>"
    plain = html.unescape(re.sub(markup, "", document.render(translations), flags=re.S | re.I))
    assert [word for word in words if word not in plain] == []


@pytest.mark.parametrize("unit", ["<b>a</b>", "<a '", '<a "', "<!--", "<code>", "<", "<b>", "</b>", "a<b>"])
def test_malicious_markup_is_parsed_in_reasonable_time(unit: str) -> None:
    started = time.process_time()
    translate(unit * (10_000 // len(unit)))
    assert time.process_time() - started < 5


def test_line_breaks_in_markup_do_not_end_sentences() -> None:
    document = HtmlDocument("<p>one\n   two\nthree</p>", lambda sentence: True)
    assert document.sentences == [("one two three", False, False)]


def test_every_space_before_an_element_stays_outside() -> None:
    element = Element(0, 3, 8, 1)
    assert _render([element], "one   two", 0, 9) == ["one   ", 0, "tw", 1, "o"]
    assert _render([element], "one  two", 0, 8) == ["one  ", 0, "two", 1]
    assert _render([element], "one     ", 0, 8) == ["one     ", 0, 1]


def test_sentences_without_alignments_are_aligned_as_a_whole() -> None:
    document = HtmlDocument("<p>one two. <b>three</b></p>", lambda sentence: True)
    translations = [Translation("EINS ZWEI.", 0.0), Translation("DREI", 0.0)]
    assert document.render(translations) == "<p>EINS ZWEI. <b>DREI</b></p>"
    assert HtmlDocument("one <b>two</b>", lambda sentence: True).render([Translation("EINS ZWEI", 0.0)]) == (
        "EINS ZWEI<b></b>"
    )
