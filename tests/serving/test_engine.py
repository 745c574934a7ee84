"""What a worker does with its model, and what the server's process stays free of."""

import subprocess
import sys
from pathlib import Path

import pytest

from regard import Translator
from regard.decoding.config import NATSettings, SearchSettings
from regard.errors import UserError
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import open_engine, widen


def test_more_hypotheses_widen_the_search_only_as_far_as_they_must() -> None:
    usual = SearchSettings()
    assert (widen(usual, 3).beam, widen(usual, 3).n_best) == (None, 3)
    assert (widen(usual, 7).beam, widen(usual, 7).n_best) == (7, 7)
    sampling = SearchSettings(temperature=1.0)
    assert widen(sampling, 4).n_best == 4
    at_once = NATSettings(lengths=3)
    assert [widen(at_once, wanted).n_best for wanted in (1, 3, 5)] == [1, 3, 3]


def test_an_engine_says_what_the_translator_says(trained_run: Path, offline: Translator) -> None:
    engine = open_engine(LoadRequest("toy", trained_run, "cpu", search={"beam": 2}))
    engine.warm_up()
    assert (engine.about.languages, engine.about.operations) == (("en", "zh"), ("translate", "embed"))
    assert engine.about.search["beam"] == 2
    lines = ["I love apples", "We want tea and dogs"]
    found = engine.run("translate", lines, {"n_best": 1, "alignments": False})
    assert [best[0].text for best in found] == offline(lines, beam=2)
    with pytest.raises(UserError, match="can translate and embed, but not classify"):
        engine.run("classify", lines, {})
    with pytest.raises(UserError, match="unknown key baem; did you mean beam"):
        open_engine(LoadRequest("toy", trained_run, "cpu", search={"baem": 2}))


def test_the_process_that_speaks_http_needs_no_torch() -> None:
    program = "import sys, regard.serving.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
