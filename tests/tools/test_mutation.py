"""The mutants of a small file, the tests that cover them, and the results of running them."""

import ast
from pathlib import Path

import pytest

from tools.mutation import __main__ as command
from tools.mutation import coverage_map, mutants, runner
from tools.mutation.coverage_map import CoveringTest, find_covering, find_related
from tools.mutation.mutants import Mutant, MutantFinder, find_mutants, sample_mutants

SOURCE = '''"""A docstring with 1 < 2."""

import math

LIMIT = 4 * 1024
NAMES = {"a": True}


class Point:
    """A point."""

    size: int = 1

    def __repr__(self) -> str:
        return "a" if self.size > 1 else "b"

    @property
    def norm(self, strict: bool = True) -> float:
        """Return the norm, which is >= 0."""
        if self.x is None and strict:
            return 0.0
        for part in self.parts[1:]:
            if part[0] == 0:
                continue
            self.total = max(part, self.total)
            self.parts.append(part)
            log.info("added %s", 1 < 2)
        if self.total < 0:
            raise ValueError(f"{self.total + 1} is negative")
        return math.atan2(self.x, self.y) + 2**5

    def area(self):
        raise NotImplementedError
'''

CHANGES = {
    'NAMES = {"a": False}',
    "size: int = 2",
    "def norm(self, strict: bool = False) -> float:",
    "if self.x is not None and strict:",
    "if self.x is None or strict:",
    "pass",
    "for part in self.parts[2:]:",
    "if part[-1] == 0:",
    "if part[0] != 0:",
    "if part[0] == 1:",
    "break",
    "self.total = min(part, self.total)",
    "if self.total <= 0:",
    "if self.total < 1:",
    "return math.atan2(self.y, self.x) + 2**5",
    "return math.atan2(self.x, self.y) - 2**5",
    "return math.atan2(self.x, self.y) + 3**5",
}


def find(source: str) -> list[Mutant]:
    finder = MutantFinder("regard/point.py", source)
    finder.visit(ast.parse(source))
    return finder.found


def test_mutants_change_behaviour_and_no_text() -> None:
    found = find(SOURCE)
    assert {mutant.new_line.strip() for mutant in found} == CHANGES
    removed = {mutant.old_line.strip().split("(")[0] for mutant in found if mutant.new == "pass"}
    assert removed == {"return 0.0", "self.total = max", "self.parts.append", "raise ValueError"}


def test_a_mutant_changes_one_line() -> None:
    for mutant in find(SOURCE):
        changed = mutant.apply(SOURCE)
        ast.parse(changed)
        pairs = zip(SOURCE.splitlines(), changed.splitlines(), strict=True)
        assert [number for number, (one, other) in enumerate(pairs, 1) if one != other] == [mutant.line]


def test_columns_count_bytes() -> None:
    (mutant,) = find('def f(名):\n    return "长" if 名 == "é" else 名\n')
    assert mutant.new_line == '    return "长" if 名 != "é" else 名'


def test_the_key_does_not_depend_on_other_lines() -> None:
    keys = [mutant.key for mutant in find(SOURCE)]
    assert [mutant.key for mutant in find("\n\n" + SOURCE)] == keys
    assert len(set(keys)) == len(keys)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a package regard."""
    (tmp_path / "regard" / "ops" / "triton").mkdir(parents=True)
    (tmp_path / "regard" / "ops" / "triton" / "kernel.py").write_text("def f(x):\n    return x < 1\n")
    (tmp_path / "regard" / "__init__.py").touch()
    (tmp_path / "regard" / "sums.py").write_text(
        "def total(x, y=1):\n    return x + y\n\n\ndef half(x):\n    return x / 2\n"
    )
    (tmp_path / "regard" / "table.py").write_text("class Row:\n    wide = True\n")
    (tmp_path / "regard" / "rows.py").write_text("from regard.table import Row\n\n\ndef row():\n    return Row()\n")
    for module in (mutants, coverage_map, runner):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(coverage_map, "HOME", tmp_path / ".mutation")
    coverage_map._align.cache_clear()
    coverage_map._list_function_lines.cache_clear()
    return tmp_path


def covering_test(name: str, lines: dict[str, set[int]], seconds: float = 0.0) -> CoveringTest:
    masks = {path: f"{sum(1 << line for line in numbers):x}" for path, numbers in lines.items()}
    sources = {path: coverage_map._store_source(path) for path in lines}
    return CoveringTest(name, seconds, {}, masks, sources)


def test_mutants_are_drawn_once_per_line_in_an_order_that_depends_on_the_seed(project: Path) -> None:
    drawn = list(sample_mutants(1))
    places = {(mutant.path, mutant.line) for mutant in find_mutants()}
    assert {(mutant.path, mutant.line) for mutant in drawn} == places
    assert len(drawn) == len(places) == 4
    assert list(sample_mutants(1)) == drawn
    assert any(list(sample_mutants(seed)) != drawn for seed in range(2, 9))
    assert {mutant.path for mutant in sample_mutants(1, "table.py")} == {"regard/table.py"}


def test_covering_tests_are_found_after_lines_have_moved(project: Path) -> None:
    tests = [covering_test("total", {"regard/sums.py": {2}}), covering_test("half", {"regard/sums.py": {6}})]
    source = project / "regard" / "sums.py"
    source.write_text("import math\n\n\n" + source.read_text().replace("x / 2", "x / 2 + 0"))
    covered = {(mutant.line, test.name) for mutant in find_mutants("sums.py") for test in find_covering(mutant, tests)}
    assert covered == {(4, "total"), (5, "total"), (9, "half")}


def test_lines_that_no_test_runs_are_tested_by_those_of_the_same_file(project: Path) -> None:
    tests = [covering_test("total", {"regard/sums.py": {2}}), covering_test("other", {"regard/rows.py": {5}})]
    half = next(mutant for mutant in find_mutants("sums.py") if mutant.scope == "half")
    assert find_covering(half, tests) == []
    assert [test.name for test in find_related(half, tests)] == ["total"]


def test_lines_that_run_at_import_are_covered_by_the_tests_of_importers(project: Path) -> None:
    tests = [covering_test("row", {"regard/rows.py": {5}, "regard/table.py": {2}}), covering_test("other", {})]
    (mutant,) = find_mutants("table.py")
    assert [test.name for test in find_covering(mutant, tests)] == ["row"]
    documenting = covering_test(f"{coverage_map.DOCUMENTING}[a.md]", {"regard/rows.py": {5}})
    assert [test.name for test in find_covering(mutant, [*tests, documenting])] == [documenting.name, "row"]


def test_excluded_mutants_are_replaced_by_others(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [covering_test("total", {"regard/sums.py": {2}})]
    first, *_ = sample_mutants(3)
    half = next(mutant for mutant in find_mutants() if mutant.scope == "half")
    (project / "excluded.txt").write_text(f"# comment\n{first.key} no effect\n{half.function} needs a GPU\n")
    monkeypatch.setattr(command, "EXCLUDED", project / "excluded.txt")
    chosen, excluded = command.choose_mutants(3, 9, None, tests)
    assert {mutant.scope for mutant, _ in excluded} == {first.scope, "half"}
    assert first not in chosen
    (project / "excluded.txt").write_text("regard/sums.py::total needs a GPU\n")
    chosen, excluded = command.choose_mutants(3, 9, "sums.py", tests)
    assert len(chosen) == 3, "a covered function counts"
    assert not excluded


def test_a_mutant_is_killed_by_a_test_that_fails_or_hangs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        "regard/__init__.py",
        "regard/sums.py",
        "tests/test_sums.py",
        "tools/__init__.py",
        "tools/mutation/selection.py",
    ]
    for name in files[3:]:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes((Path(command.__file__).parents[2] / name).read_bytes())
    (project / "tests").mkdir()
    (project / "tests" / "test_sums.py").write_text(
        "from regard.sums import half, total\n\n\n"
        "def test_total():\n    assert total(2, 0) == 2\n\n\ndef test_half():\n    assert half(3) == 1.5\n\n\n"
        "def test_loop():\n    while half(3) > 2:\n        pass\n"
    )
    monkeypatch.setattr(runner, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(runner, "list_files", lambda: files)
    tests = [
        covering_test(f"tests/test_sums.py::test_{name}", {"regard/sums.py": {2, 6}})
        for name in ("total", "half", "loop")
    ]
    copy = runner.Copy(project / "copy", libraries=("schemathesis.pytest.plugin",))
    found = {mutant.new_line.strip(): mutant for mutant in find_mutants("sums.py")}
    results = [copy.test(found[line], tests, 60) for line in ("return x - y", "return x * 2")]
    hanging = copy.test(found["return x * 2"], tests[2:], 60)
    copy.close()
    assert [result.state for result in results] == ["survived", "killed"]
    assert results[1].killer == "tests/test_sums.py::test_half"
    assert (hanging.state, hanging.killer) == ("killed", "tests/test_sums.py::test_loop")
    assert (project / "copy" / "regard" / "sums.py").read_text() == (project / "regard" / "sums.py").read_text()


def test_tests_of_a_few_files_are_run_first() -> None:
    seconds = {"tests/ops/test_b.py::slow": 1.5, "tests/ops/test_a.py::one": 0.1, "tests/ops/test_a.py::two": 0.1}
    seconds |= {f"tests/models/test_{i}.py::{j}": 0.1 for i in range(3) for j in range(2 + i)}
    seconds |= {"tests/cli/test_all.py::long": 14.5, "tests/ops/test_a.py::long": 3.0}
    tests = [CoveringTest(name, seconds[name], {}, {}, {}) for name in sorted(seconds, key=lambda name: seconds[name])]
    first, second, third = runner.split_tests(tests, "tests/ops/")
    assert {test.name.split("::")[0] for test in first} == {
        "tests/ops/test_a.py",
        "tests/ops/test_b.py",
        "tests/models/test_2.py",
    }
    assert sum(test.seconds for test in first) <= runner.FIRST_SECONDS
    assert [test.name for test in third] == ["tests/cli/test_all.py::long"]
    assert {test.name for test in [*first, *second, *third]} == seconds.keys()
    assert runner.split_tests(tests[:1], "tests/cli/") == [tests[:1]]
