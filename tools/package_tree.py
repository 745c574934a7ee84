"""The tree of packages in docs/design.md, generated from the docstrings of the packages.

python tools/package_tree.py           update docs/design.md
python tools/package_tree.py --check   exit with code 1 if it is out of date
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "design.md"
ORDER = (
    "config", "errors", "registry", "files", "threads", "console", "masks", "ops", "attention", "layers", "models",
    "data", "decoding", "inspection", "pipelines", "evaluation", "interop", "training", "serving", "cli",
)  # fmt: skip
WIDTH, INDENT = 118, 20


def package_tree() -> str:
    """One entry per package or top-level module, in the order of the import rules, with its docstring."""
    home = ROOT / "regard"
    found = {path.stem for path in home.glob("*.py")} | {path.parent.name for path in home.glob("*/__init__.py")}
    unknown = found - set(ORDER) - {"__init__", "__main__"}
    if unknown or set(ORDER) - found:
        sys.exit(
            f"packages differ from ORDER in {Path(__file__).name}: {', '.join(sorted(unknown ^ set(ORDER) & found))}"
        )
    lines = ["regard/"]
    for name in ORDER:
        path = home / name / "__init__.py"
        label = f"  {name}/" if path.exists() else f"  {name}.py"
        summary = summary_of(path if path.exists() else home / f"{name}.py")
        wrapped = textwrap.wrap(summary, WIDTH - INDENT)
        lines += [f"{label if number == 0 else '':{INDENT}}{line}" for number, line in enumerate(wrapped)]
    return "```\n" + "\n".join(lines) + "\n```"


def summary_of(path: Path) -> str:
    """The first paragraph of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def main() -> None:
    """Update or check docs/design.md."""
    old = PAGE.read_text(encoding="utf-8")
    new = re.sub(
        r"(<!-- tree -->\n).*?(<!-- /tree -->)",
        lambda match: f"{match[1]}{package_tree()}\n{match[2]}",
        old,
        flags=re.S,
    )
    if "--check" in sys.argv:
        sys.exit(f"{PAGE.name} is out of date; run python tools/package_tree.py" if new != old else 0)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
