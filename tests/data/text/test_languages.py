"""Language codes in names of columns, and detection by script."""

import pytest

from regard.data.text.languages import detect_language, find_language


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("en", "en"),
        (" ZH ", "zh"),
        ("zh-CN", "zh-CN"),
        ("pt_BR", "pt_BR"),
        ("German", "de"),
        ("translation.fr", "fr"),
        ("source", ""),
        ("xx", ""),
        ("english text", ""),
        ("", ""),
    ],
)
def test_language_of_a_column_name(name: str, code: str) -> None:
    assert find_language(name) == code


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["我喜欢苹果。", "你好"], "zh"),
        (["我用 Python 和 PyTorch 训练模型，效果很好，大家都喜欢。"], "zh"),
        (["私はりんごが好きです。"], "ja"),
        (["東京タワー"], "ja"),
        (["나는 사과를 좋아한다."], "ko"),
        (["ฉันชอบแอปเปิ้ล"], "th"),
        (["Αγαπώ τα μήλα"], "el"),
        (["I love apples", "the word 苹果 means apple"], ""),
        (["Я люблю яблоки"], ""),  # several languages use this script
        (["1, 2, 3!", ""], ""),
        ([], ""),
    ],
)
def test_language_of_a_script(texts: list[str], code: str) -> None:
    assert detect_language(texts) == code
