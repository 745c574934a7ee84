"""Mutation testing: change one line of regard/ and check that a test fails.

    python -m tools.mutation map [TESTS...]     # once: which test runs which line (runs all tests); then new tests
    python -m tools.mutation run --seed 7 --count 150 [--package decoding] [--jobs 2]
    python -m tools.mutation show --seed 7 --count 20 [--package decoding]

`run` tests random mutants and prints those that survive and the share of killed mutants by package. The same command
continues an interrupted run; with --again it tests the survivors again, for example after tests have been added.
Mutants in `excluded.txt` do not count: those that change no behaviour, and functions that need a GPU if no test of the
map runs them. The report lists them with the reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tools.mutation import coverage_map
from tools.mutation.coverage_map import CoveringTest
from tools.mutation.mutants import Mutant, sample_mutants
from tools.mutation.runner import Copy, Result, load_results, store_result

EXCLUDED = Path(__file__).with_name("excluded.txt")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map", help="record which test runs which line")
    mapping.add_argument("tests", nargs="*", help="test files and folders; by default all")
    mapping.add_argument("--jobs", type=int, default=2, help="folders that are run at the same time")
    for name in ("run", "show"):
        command = commands.add_parser(name, help=f"{name} random mutants")
        command.add_argument("--seed", type=int, required=True)
        command.add_argument("--count", type=int, default=150, help="number of mutants")
        command.add_argument("--package", help="package or file in regard/, for example decoding or decoding/beam.py")
    command = commands.choices["run"]
    command.add_argument("--jobs", type=int, default=2, help="mutants that are tested at the same time")
    command.add_argument("--budget", type=float, default=180, help="seconds of tests for each mutant")
    command.add_argument("--again", action="store_true", help="test survivors again")
    arguments = parser.parse_args()
    if arguments.command == "map":
        coverage_map.build(arguments.tests, arguments.jobs)
        return
    tests = coverage_map.load()
    if not tests:
        sys.exit("there is no map of the covering tests; first run: python -m tools.mutation map")
    mutants, excluded = choose_mutants(arguments.seed, arguments.count, arguments.package, tests)
    if arguments.command == "show":
        print(*mutants, sep="\n")
        return
    name = f"seed-{arguments.seed}-{(arguments.package or 'all').replace('/', '-')}.jsonl"
    path = coverage_map.HOME / "results" / name
    run(mutants, tests, path, arguments.jobs, arguments.budget, arguments.again)
    report(mutants, load_results(path), excluded)


def choose_mutants(
    seed: int, count: int, package: str | None, tests: list[CoveringTest]
) -> tuple[list[Mutant], list[tuple[Mutant, str]]]:
    """Return `count` random mutants, and those that were drawn but are excluded, with the reason."""
    reasons = load_reasons()
    chosen: list[Mutant] = []
    excluded: list[tuple[Mutant, str]] = []
    for mutant in sample_mutants(seed, package):
        if len(chosen) == count:
            break
        reason = reasons.get(mutant.key)
        if reason is None and mutant.function in reasons and not coverage_map.find_covering(mutant, tests):
            reason = reasons[mutant.function]
        if reason is None:
            chosen.append(mutant)
        else:
            excluded.append((mutant, reason))
    return chosen, excluded


def load_reasons() -> dict[str, str]:
    """Return the reason for each excluded mutant by its key, and for each function that needs a GPU by its name."""
    lines = EXCLUDED.read_text(encoding="utf-8").splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def run(mutants: list[Mutant], tests: list[CoveringTest], path: Path, jobs: int, budget: float, again: bool) -> None:
    """Test the mutants that have no result yet, and store each result at once.

    A test that fails without a mutant does not count: the mutants that it has killed are tested again.
    """
    results = load_results(path)
    pending = [
        mutant for mutant in mutants if mutant.key not in results or (again and results[mutant.key].state != "killed")
    ]
    covering = {  # before files change
        mutant.key: coverage_map.find_covering(mutant, tests) or coverage_map.find_related(mutant, tests)
        for mutant in pending
    }
    failing: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))

        def test(mutant: Mutant) -> Result:
            copy = copies.get()
            result = copy.test(mutant, [test for test in covering[mutant.key] if test.name not in failing], budget)
            copies.put(copy)
            store_result(path, result)
            print(result.state, f"by {result.killer}" if result.killer else "", mutant, flush=True)
            return result

        while pending:
            with ThreadPoolExecutor(jobs) as pool:
                tested = list(pool.map(test, pending))
            killers = {result.killer for result in tested}
            unmutated = copies.get()
            failing |= set(unmutated.run([test for test in tests if test.name in killers], stop=False))
            copies.put(unmutated)
            pending = [mutant for mutant, result in zip(pending, tested, strict=True) if result.killer in failing]
            for name in failing:
                print(f"{name} fails without a mutant and does not count")


def report(mutants: list[Mutant], results: dict[str, Result], excluded: list[tuple[Mutant, str]]) -> None:
    """Print the excluded mutants, the survivors and the score of each package."""
    for mutant, reason in excluded:
        print(f"excluded: {mutant}\n    {reason}")
    killed, total = Counter[str](), Counter[str]()
    for mutant in mutants:
        result = results[mutant.key]
        total[mutant.package] += 1
        killed[mutant.package] += result.state == "killed"
        if result.state != "killed":
            print(f"{result.state}: {mutant}\n    {result.tests} of {result.covering} covering tests were run")
    for package in sorted(total):
        print(f"{package:12} {killed[package]:4} of {total[package]:4} killed")
    share = killed.total() / max(1, total.total())
    print(f"{killed.total()} of {total.total()} mutants killed ({share:.1%}); {len(excluded)} mutants excluded")


if __name__ == "__main__":
    main()
