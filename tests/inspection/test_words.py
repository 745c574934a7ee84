"""Pieces of words."""

import pytest

from regard.inspection.words import continues_word


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        (["▁un", "seen", "▁words"], [0, 1, 0]),
        (["▁end", ".", "▁3", "D"], [0, 0, 0, 1]),
        (["▁", "apples", "▁x"], [0, 1, 0]),
        (["我", "喜欢", "苹果"], [0, 0, 0]),
        (["▁iPhone", "手机"], [0, 0]),
        (["▁caf", "é", "s"], [0, 1, 1]),
        (["▁e", "\N{COMBINING ACUTE ACCENT}"], [0, 1]),
        (["▁don", "'", "t", "▁'", "x"], [0, 1, 1, 0, 0]),
        (["▁", "("], [0, 1]),
        (["▁wait", ".", "."], [0, 0, 0]),
        (["▁caf", "<0xC3>", "<0xA9>", "s"], [0, 1, 1, 1]),
        (["好", "<0xE6>", "<0x98>", "<0xAF>", "我"], [0, 0, 1, 1, 0]),
        (["<0xFF>", "a"], [0, 0]),
        ([], []),
    ],
)
def test_pieces_continue_the_word_before_them(tokens: list[str], pieces: list[int]) -> None:
    assert continues_word(tokens) == [bool(piece) for piece in pieces]
