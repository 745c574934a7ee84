"""Print the size of regard/: packages, files, lines, long functions, kernels with many arguments.

    python tools/code_metrics.py [--check]

With --check the exit code is 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from pathlib import Path

HOME = Path(__file__).parent.parent / "regard"
MAX_PACKAGES, MAX_FILES, MAX_LINES = 12, 280, 40_500
MAX_FUNCTION_LINES, MAX_KERNEL_ARGUMENTS = 60, 30


def main() -> None:
    """Print the figures and the places that exceed a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with code 1 if a limit is exceeded")
    check = parser.parse_args().check
    files = sorted(HOME.rglob("*.py"))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    packages = {path.relative_to(HOME).parts[0] for path in files if len(path.relative_to(HOME).parts) > 1}
    number, size = Counter[str](), Counter[str]()
    for path in files:
        name = path.relative_to(HOME).parts[0]
        name = name if name in packages else "(top level)"
        number[name] += 1
        size[name] += lines[path]
    for name in sorted(number):
        print(f"{name:12} {number[name]:4} files {size[name]:6,} lines")
    print(f"{len(packages)} packages, {len(files)} files, {sum(lines.values()):,} lines")
    exceeded = [
        f"{what}: {value:,}, at most {limit:,} allowed"
        for what, value, limit in (
            ("packages", len(packages), MAX_PACKAGES),
            ("files", len(files), MAX_FILES),
            ("lines", sum(lines.values()), MAX_LINES),
        )
        if value > limit
    ]
    exceeded += [place for path in files for place in find_large_functions(path)]
    print("\n".join(exceeded) if exceeded else "no limit is exceeded")
    sys.exit(bool(exceeded) and check)


def find_large_functions(path: Path) -> list[str]:
    """Functions over the limits. Kernels and CLI commands may be longer; kernels have a limit on arguments."""
    name = path.relative_to(HOME.parent)
    is_kernel, is_command = "triton" in path.parts, "cli" in path.parts
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        length = node.end_lineno - node.lineno + 1
        arguments = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
        if length > MAX_FUNCTION_LINES and not (is_kernel or is_command):
            found.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
        if is_kernel and arguments > MAX_KERNEL_ARGUMENTS:
            found.append(f"{name}:{node.lineno}: {node.name} has {arguments} arguments")
    return found


if __name__ == "__main__":
    main()
