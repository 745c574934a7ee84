"""Alignment of content words by the lexicon of the corpus."""

from regard.data.builtin.corpus import load_examples
from tools.corpus.alignment import align_content_words


def test_content_words_are_aligned_with_their_translations() -> None:
    english, chinese = "Tom's father likes the red cups.", "汤姆 的 爸爸 喜欢 红色 的 杯子 。"
    words = english.split()
    links = {
        chinese.split()[i]: [words[j] for j in found] for i, found in align_content_words(english, chinese.split())
    }
    assert {word: links[word] for word in ("汤姆", "爸爸", "喜欢", "杯子")} == {
        "汤姆": ["Tom's"],
        "爸爸": ["father"],
        "喜欢": ["likes"],
        "杯子": ["cups."],
    }
    assert "的" not in links


def test_most_sentences_have_content_words() -> None:
    examples = load_examples("test", 100)
    counts = [len(align_content_words(example.pair.source, example.words)) for example in examples]
    assert sum(count > 0 for count in counts) > 95
    assert 2 < sum(counts) / len(counts) < 4
