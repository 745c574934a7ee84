"""Model runners: operations of translators and image models in a worker."""

import subprocess
import sys
from pathlib import Path

import pytest

from regard import Translator
from regard.decoding.settings import NATSettings, SearchSettings
from regard.errors import UserError
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import save_model
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import ClassificationRunner, load_runner, widen_search


def test_beam_is_widened_only_as_far_as_needed() -> None:
    default = SearchSettings()
    assert (widen_search(default, 3).beam, widen_search(default, 3).n_best) == (None, 3)
    assert (widen_search(default, 7).beam, widen_search(default, 7).n_best) == (7, 7)
    sampling = SearchSettings(temperature=1.0)
    assert widen_search(sampling, 4).n_best == 4
    nat = NATSettings(lengths=3)
    assert [widen_search(nat, n_best).n_best for n_best in (1, 3, 5)] == [1, 3, 3]


def test_translation_runner_equals_the_translator(trained_run: Path, translator: Translator) -> None:
    runner = load_runner(LoadRequest("toy", trained_run, "cpu", search={"beam": 2}))
    runner.warm_up()
    assert (runner.info.languages, runner.info.operations) == (("en", "zh"), ("translate", "embed"))
    assert runner.info.search["beam"] == 2
    lines = ["I love apples", "We want tea and dogs"]
    n_best_lists = runner.run("translate", lines, {"n_best": 1, "alignments": False})
    assert [n_best[0].text for n_best in n_best_lists] == translator(lines, beam=2)
    with pytest.raises(UserError, match="toy does not support classify; it supports translate, embed"):
        runner.run("classify", lines, {})
    with pytest.raises(UserError, match="unknown key baem; did you mean beam"):
        load_runner(LoadRequest("toy", trained_run, "cpu", search={"baem": 2}))


def test_two_view_model_supports_only_the_page(tmp_path: Path) -> None:
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2}
    save_model(tmp_path, CroCo(CroCoConfig.micro(**sizes)), {})
    runner = load_runner(LoadRequest("x", tmp_path, "cpu"))
    runner.warm_up()
    assert (runner.info.operations, runner.info.sections) == ((), ("overview", "views", "positions"))
    with pytest.raises(UserError, match="x does not support classify; it supports only the page"):
        runner.run("classify", [b""], {})


def test_image_model_has_no_search_settings(image_run: Path) -> None:
    assert isinstance(load_runner(LoadRequest("x", image_run, "cpu")), ClassificationRunner)
    with pytest.raises(UserError, match="has no search settings; omit --search"):
        load_runner(LoadRequest("x", image_run, "cpu", search={"beam": 1}))


def test_classifier_is_warmed_up_with_one_and_several_images(image_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = load_runner(LoadRequest("x", image_run, "cpu"))
    batches: list[int] = []
    monkeypatch.setattr(runner.classifier, "predict", lambda images: batches.append(len(images)))
    runner.warm_up()
    assert batches == [1, 16]


def test_server_process_does_not_import_torch() -> None:
    program = "import sys, regard.serving.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0
