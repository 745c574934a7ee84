"""Finds single-line mutants: small changes of one line that should change the behaviour of regard.

Left alone are Triton kernels, docstrings, annotations, imports, decorators, assertions, abstract methods, `repr`,
f-strings, the text of errors and log messages, help texts, and arguments and constants that only affect speed.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARISONS |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*"}
FUNCTIONS = {"min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax", "any": "all", "floor": "ceil"}
FUNCTIONS |= {new: old for old, new in FUNCTIONS.items()}
OPERATOR = re.compile(r"is\s+not|not\s+in|is|in|<=|>=|==|!=|//|\*\*|[<>+*/-]")

SYMMETRIC = {
    "min",
    "max",
    "minimum",
    "maximum",
    "isinstance",
    "issubclass",
    "gcd",
    "equal",
    "allclose",
    "hypot",
    "logaddexp",
    "cast",
    "suppress",
    "promote_types",
}
"""Functions whose arguments are not swapped: their order does not matter or is a matter of types."""
MESSAGES = {"log", "logger", "logging", "warn", "warning", "info", "debug", "log_event", "annotate"}
"""Functions, methods and objects that write messages."""
NO_EFFECT = {"collect", "empty_cache", "synchronize", "record_stream", "flush", "close", "sleep", "set_num_threads"}
NO_EFFECT |= {"grid", "set_axisbelow", "tick_params", "set_visible", "set_minor_formatter", "set_major_locator"}
"""Functions that only free resources, affect speed, or the appearance of a plot."""
IGNORED_KEYWORDS = {"non_blocking", "pin_memory", "persistent_workers", "daemon", "exist_ok", "parents", "stacklevel"}
IGNORED_KEYWORDS |= {"ahead", "fused", "use_threads"}
IGNORED_KEYWORDS |= {"help", "metavar", "dim", "axis", "indent", "maxsize", "ensure_ascii", "soft_wrap", "markup"}
IGNORED_KEYWORDS |= {
    "fontsize",
    "linewidth",
    "zorder",
    "labelpad",
    "pad",
    "dpi",
    "frameon",
    "sharex",
    "sharey",
    "ncols",
}
"""Keyword arguments whose change is no fault, or cannot be missed."""
SHAPE_METHODS = {"unsqueeze", "squeeze", "transpose", "permute", "flatten", "unflatten", "movedim", "chunk", "round"}
"""Functions whose integers are dimensions or digits: another one cannot be missed, or does not matter."""
PATHS = re.compile(r"(path|folder|directory|root|home|out|parent|here|run)s?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Mutant:
    """A change of one line. Columns count bytes, as in `ast`."""

    path: str
    line: int
    start: int
    end: int
    new: str
    kind: str
    scope: str
    old_line: str
    covered_by: tuple[int, ...]
    """The lines whose tests may notice the mutant; empty: the line runs when the module is imported."""

    @property
    def new_line(self) -> str:
        old = self.old_line.encode()
        return (old[: self.start] + self.new.encode() + old[self.end :]).decode()

    @property
    def key(self) -> str:
        """A name that stays the same when other lines of the file change."""
        parts = (self.path, self.scope, self.old_line.strip(), self.new_line.strip())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]

    @property
    def function(self) -> str:
        return f"{self.path}::{self.scope}"

    @property
    def package(self) -> str:
        return Path(self.path).parts[1].removesuffix(".py")

    def __str__(self) -> str:
        place = f"{self.path}:{self.line} {self.kind} [{self.key}]"
        return f"{place}\n    - {self.old_line.strip()}\n    + {self.new_line.strip()}"

    def apply(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        ending = lines[self.line - 1][len(self.old_line) :]
        lines[self.line - 1] = self.new_line + ending
        return "".join(lines)


class MutantFinder(ast.NodeVisitor):
    """Collects the mutants of a file."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.lines = source.splitlines()
        self.scope: list[str] = []
        self.covered_by: tuple[int, ...] = ()
        self.last_statements: set[ast.stmt] = set()
        self.found: list[Mutant] = []

    def add(self, line: int, start: int, end: int, new: str, kind: str) -> None:
        mutant = Mutant(
            self.path, line, start, end, new, kind, ".".join(self.scope), self.lines[line - 1], self.covered_by
        )
        if mutant.new_line != mutant.old_line:
            self.found.append(mutant)

    def replace(self, node: ast.expr | ast.stmt, new: str, kind: str) -> None:
        if node.lineno == node.end_lineno:
            assert node.end_col_offset is not None
            self.add(node.lineno, node.col_offset, node.end_col_offset, new, kind)

    def text(self, node: ast.AST) -> str:
        """The text of a node that stands on one line."""
        assert isinstance(node, ast.expr | ast.stmt)
        return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()

    def replace_operator(self, left: ast.expr, right: ast.expr, table: dict[str, str], kind: str) -> None:
        if left.end_lineno != right.lineno:
            return
        between = self.lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
        if found := OPERATOR.search(between):
            old = " ".join(found.group().split())
            if old in table:
                assert left.end_col_offset is not None
                start = left.end_col_offset + len(between[: found.start()].encode())
                self.add(right.lineno, start, start + len(found.group().encode()), table[old], kind)

    # Statements

    def visit(self, node: ast.AST) -> None:
        """Visit a node; statements say which lines must be covered."""
        if isinstance(node, ast.stmt) and self.covered_by:
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno
            self.covered_by = tuple(range(node.lineno, max(node.lineno, end or 0) + 1))
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__", "extra_repr"):
            return
        outside, self.scope = self.covered_by, [*self.scope, node.name]
        self.covered_by = tuple(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
        self.last_statements.add(node.body[-1])
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.covered_by = (statement.lineno,)
            self.visit(statement)
        self.scope, self.covered_by = self.scope[:-1], outside

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outside, self.covered_by, self.scope = self.covered_by, (), [*self.scope, node.name]
        for statement in node.body:
            self.visit(statement)
        self.scope, self.covered_by = self.scope[:-1], outside

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_Import(self, node: ast.Import) -> None:
        pass

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        if isinstance(node.exc, ast.Name) and node.exc.id == "NotImplementedError":
            return  # of abstract methods
        self.replace(node, "pass", "raise")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Attribute | ast.Subscript):
            self.replace(node, "pass", "assignment")
        is_constant = not self.scope and isinstance(target, ast.Name) and target.id.isupper()
        if is_constant and all(
            isinstance(part, ast.Constant | ast.BinOp | ast.operator) for part in ast.walk(node.value)
        ):
            return
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if node.target.end_lineno == node.lineno and not _is_text(node.value):
            between = self.lines[node.lineno - 1].encode()[node.target.end_col_offset : node.value.col_offset].decode()
            old = between.strip().removesuffix("=")
            if old in ARITHMETIC:
                assert node.target.end_col_offset is not None
                start = node.target.end_col_offset + between.index(old)
                self.add(node.lineno, start, start + len(old), ARITHMETIC[old], "arithmetic")
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(value, ast.Call) or _names(value.func) & (MESSAGES | NO_EFFECT):
            return
        self.replace(node, "pass", "call")
        self.visit(value)

    def visit_Return(self, node: ast.Return) -> None:
        if node not in self.last_statements:
            self.replace(node, "pass", "return")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.replace(node, "break", "continue")

    def visit_Break(self, node: ast.Break) -> None:
        self.replace(node, "continue", "break")

    def visit_If(self, node: ast.If) -> None:
        if self.text_of_test(node) in ("TYPE_CHECKING", '__name__ == "__main__"'):
            return
        self.negate(node.test)
        self.generic_visit(node)

    def text_of_test(self, node: ast.If) -> str:
        return self.text(node.test) if node.test.lineno == node.test.end_lineno else ""

    def visit_While(self, node: ast.While) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    # Expressions

    def negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript) and test.lineno == test.end_lineno:
            self.replace(test, f"not {self.text(test)}", "condition")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.negate(test)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass  # mostly messages; before Python 3.12 the columns inside are wrong

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            self.replace_operator(left, right, COMPARISONS, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            if left.end_lineno == right.lineno:
                between = self.lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
                if old in between:
                    assert left.end_col_offset is not None
                    start = left.end_col_offset + between.index(old)
                    self.add(right.lineno, start, start + len(old), new, "and/or")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not) and node.operand.lineno == node.operand.end_lineno:
            self.replace(node, self.text(node.operand), "not")
            self.visit(node.operand)
        elif not isinstance(node.operand, ast.Constant):
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_path = (
            isinstance(node.op, ast.Div)
            and node.left.lineno == node.left.end_lineno
            and PATHS.search(self.text(node.left))
        )
        if not (_is_text(node.left) or _is_text(node.right) or is_path):
            self.replace_operator(node.left, node.right, ARITHMETIC, "arithmetic")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        names = _names(node.func)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if names & MESSAGES or last.endswith(("Error", "Warning")):
            return
        if last in FUNCTIONS:
            end = node.func.end_col_offset
            assert end is not None and node.func.end_lineno is not None
            self.add(node.func.end_lineno, end - len(last), end, FUNCTIONS[last], "function")
        self.swap_arguments(node, last)
        self.visit(node.func)
        for argument in node.args:
            if not (last in SHAPE_METHODS and isinstance(argument, ast.Constant)):
                self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in IGNORED_KEYWORDS and (last, keyword.arg) != ("zip", "strict"):
                self.visit(keyword.value)

    def swap_arguments(self, node: ast.Call, name: str) -> None:
        if len(node.args) < 2 or name in SYMMETRIC | SHAPE_METHODS:
            return
        first, second = node.args[:2]
        simple = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.Call)
        if isinstance(first, simple) and isinstance(second, simple) and first.lineno == second.end_lineno:
            assert second.end_col_offset is not None
            between = self.lines[first.lineno - 1].encode()[first.end_col_offset : second.col_offset].decode()
            new = self.text(second) + between + self.text(first)
            self.add(first.lineno, first.col_offset, second.end_col_offset, new, "swap")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, ast.Slice):
                for bound in filter(None, (part.lower, part.upper)):
                    self.shift_bound(bound)
            elif part.lineno == part.end_lineno and (text := self.text(part)) in ("0", "-1"):
                self.replace(part, "-1" if text == "0" else "0", "index")
            else:
                self.visit(part)

    def shift_bound(self, bound: ast.expr) -> None:
        if bound.lineno != bound.end_lineno:
            return
        if isinstance(bound, ast.Name | ast.Attribute | ast.Call | ast.BinOp):
            self.replace(bound, f"{self.text(bound)} + 1", "slice")
            self.visit(bound)
        elif self.text(bound).removeprefix("-").isdigit():
            number = int(self.text(bound))
            self.replace(bound, str(number + (1 if number >= 0 else -1)), "slice")

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value is True or node.value is False:
            self.replace(node, str(not node.value), "boolean")
        elif isinstance(node.value, int) and node.value in (0, 1, 2, 3) and self.scope:
            self.replace(node, str(node.value + 1), "integer")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _names(function: ast.expr) -> set[str]:
    """The names in a called expression: {"torch", "cuda", "synchronize"} of torch.cuda.synchronize."""
    nodes = ast.walk(function)
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Name)
    }


def find_mutants(package: str | None = None) -> Iterator[Mutant]:
    """Yield all mutants of regard/, or of a package or file of it such as decoding or decoding/beam.py."""
    for path in sorted((ROOT / "regard").rglob("*.py")):
        name = path.relative_to(ROOT / "regard")
        if "triton" in name.parts or (package and not f"{name}/".startswith(f"{package}/")):
            continue
        source = path.read_text(encoding="utf-8")
        finder = MutantFinder(str(path.relative_to(ROOT)), source)
        finder.visit(ast.parse(source))
        yield from finder.found


def sample_mutants(seed: int, package: str | None = None) -> Iterator[Mutant]:
    """Yield mutants in random order, at most one of a line. All lines have the same probability."""
    by_line = defaultdict(list)
    for mutant in find_mutants(package):
        by_line[mutant.path, mutant.line].append(mutant)
    generator = random.Random(seed)
    lines = list(by_line)
    generator.shuffle(lines)
    for line in lines:
        yield generator.choice(by_line[line])
