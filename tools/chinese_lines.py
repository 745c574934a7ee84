"""Joins the lines of Chinese paragraphs: HTML shows a line break as a space, which Chinese text does not have.

A hook of MkDocs (mkdocs.yml) for the pages in docs/zh; tools/build_course.py uses it for the notebooks.
"""

import re
from typing import Any

CHARACTER, PUNCTUATION = r"一-鿿", r"，。；：、？！（）《》“”…"
BREAK = re.compile(
    rf"(?<=[{CHARACTER}{PUNCTUATION}])\n *(?=[{CHARACTER}{PUNCTUATION}])"
    rf"|(?<=[{PUNCTUATION}])\n *(?![\s\-+>|#0-9`]|$)"  # not before a list, quotation, table, heading or code block
)


def join_lines(text: str) -> str:
    """Return Markdown in which Chinese paragraphs have one line; code blocks are unchanged."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else BREAK.sub("", part) for part in parts)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs for every page."""
    return join_lines(markdown) if page.file.src_uri.startswith("zh/") else markdown
