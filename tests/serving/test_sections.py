"""What the page is told about a model: the numbers are the model's own."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import regard
from regard.errors import UserError
from regard.inspection.interventions import scale_scores
from regard.inspection.probe import probe
from regard.inspection.translation import record_translation
from regard.models.nat import NATransformer, NATransformerConfig
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import TranslationEngine, choose_search
from regard.serving.views.beam import show_beam
from regard.serving.views.packet import pack, unpack
from regard.serving.views.positions import show_positions
from tests.serving.running import Running

TEXT = "I love apples and books"


@pytest.fixture(scope="module")
def engine(trained_run: Path) -> TranslationEngine:
    return TranslationEngine(LoadRequest("toy", trained_run, "cpu"))


@pytest.fixture(scope="module")
def target(engine: TranslationEngine) -> list[int]:
    about, _ = unpack(engine.run("translation", [{"text": TEXT, "n_best": 2}], {})[0])
    tokens: list[int] = about["hypotheses"][0]["tokens"]
    return tokens


def ask(engine: TranslationEngine, operation: str, **asked: Any) -> Any:
    (answer,) = engine.run(operation, [{"text": TEXT} | asked], {})
    return unpack(answer) if isinstance(answer, bytes) else answer


def test_a_packet_keeps_its_arrays() -> None:
    maps = np.array([[0.0, 1.0, -np.inf], [-0.5, 0.25, 0.125]])
    exact = np.array([1.5, -np.inf], np.float32)
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    about, arrays = unpack(
        pack({"名": "<b>"}, {"maps": (maps, "u2"), "exact": (exact, "f4"), "pixels": (pixels, "b1")})
    )
    assert about == {"名": "<b>"}
    assert arrays["maps"] == pytest.approx(np.where(np.isinf(maps), np.nan, maps), abs=2e-5, nan_ok=True)
    assert (arrays["exact"] == exact).all()
    assert (arrays["pixels"] == pixels).all()


def test_translations_come_with_what_they_looked_at(engine: TranslationEngine, offline: regard.Translator) -> None:
    about, arrays = ask(engine, "translation", n_best=3)
    known = offline.hypotheses([TEXT], engine.settings.changed(n_best=3, beam=max(3, engine.settings.beam_width)))[0]
    assert [one["text"] for one in about["hypotheses"]] == [one.text for one in known]
    assert arrays["alignment0"].shape == (len(about["hypotheses"][0]["labels"]), len(about["source"]))
    assert arrays["alignment0"].sum(1) == pytest.approx(1, abs=1e-2)


def test_the_page_searches_no_wider_than_the_server(trained_run: Path) -> None:
    narrow = TranslationEngine(LoadRequest("toy", trained_run, "cpu", search={"beam": 2}))
    about, _ = ask(narrow, "translation", n_best=4)
    found = ask(narrow, "beam", search={})
    assert [found["settings"]["beam"], len(about["hypotheses"])] == [2, 2]
    assert found["text"] == about["hypotheses"][0]["text"]


@pytest.mark.parametrize("name", ["encoder.1.attention", "decoder.0.attention", "decoder.1.cross"])
def test_a_map_is_what_the_probe_sees(
    engine: TranslationEngine, offline: regard.Translator, target: list[int], name: str
) -> None:
    with probe(offline.model, [name], record=["weights", "scores"]) as seen:
        offline(TEXT)
    about, arrays = ask(engine, "map", target=target, name=name, head=1, quantity="weights")
    assert arrays["map"] == pytest.approx(seen[name].weights[0, 1].numpy(), abs=1e-4)
    assert arrays["map"].shape == (len(about["rows"]), len(about["columns"]))
    _, mean = ask(engine, "map", target=target, name=name, head=None, quantity="weights")
    assert mean["map"] == pytest.approx(seen[name].weights[0].mean(0).numpy(), abs=1e-4)
    _, scores = ask(engine, "map", target=target, name=name, head=0, quantity="scores")
    known = seen[name].scores[0, 0].numpy()
    assert (np.isnan(scores["map"]) == np.isinf(known)).all()
    assert scores["map"][np.isfinite(known)] == pytest.approx(known[np.isfinite(known)], abs=1e-2)


def test_the_overview_has_every_head(engine: TranslationEngine, target: list[int]) -> None:
    about, arrays = ask(engine, "attention", target=target)
    assert [view["name"] for view in about["views"]] == list(arrays)
    for view in about["views"]:
        assert arrays[view["name"]].shape[0] == view["heads"] + 1
        assert arrays[view["name"]].max() == pytest.approx(1, abs=0.5)


def test_every_step_of_the_arithmetic_follows_from_the_one_before(engine: TranslationEngine, target: list[int]) -> None:
    name = "decoder.1.attention"
    about, a = ask(engine, "arithmetic", target=target, name=name, head=1, query=2)
    assert a["products"] == pytest.approx(a["k"] @ a["q"], rel=1e-4)
    allowed = np.isfinite(a["scores"])
    assert allowed.tolist() == [i <= 2 for i in range(len(about["columns"]))]
    assert a["scores"][allowed] == pytest.approx(a["products"][allowed] * about["scale"], rel=1e-4)
    powers = np.exp(a["scores"])
    assert a["weights"] == pytest.approx(powers / powers.sum(), abs=1e-5)
    assert a["heads"][1] == pytest.approx(a["weights"] @ a["v"], abs=1e-4)
    out = engine.translator.model.get_submodule(f"{name}.out")
    joined = torch.from_numpy(a["heads"].reshape(1, -1)).float()
    assert a["output"] == pytest.approx(out(joined)[0].detach().numpy(), abs=1e-4)
    assert about["softmax"]


def test_a_beam_says_what_became_of_each_hypothesis(engine: TranslationEngine) -> None:
    found = ask(engine, "beam", search={"beam": 3, "alpha": 0.5})
    tree = found["tree"]
    assert {node["fate"].split(":")[0] for node in tree} == {"kept", "ended", "dropped"}
    assert all(node["parent"] == -1 or tree[node["parent"]]["step"] == node["step"] - 1 for node in tree)
    assert found["settings"]["alpha"] == 0.5
    assert ask(engine, "beam", search={})["text"] == ask(engine, "translation", n_best=4)[0]["hypotheses"][0]["text"]
    assert (found["length"], found["canvases"]) == (None, [])


@pytest.mark.parametrize(
    ("own", "asked", "kept"),
    [
        ({"lengths": 3, "n_best": 2}, {"lengths": 1}, (None, 1)),
        ({"lengths": 3, "n_best": 3}, {"lengths": 2}, ("judge", 2)),
        ({"lengths": 3, "n_best": 2}, {"iterations": 2}, ("judge", 2)),
        ({"beam": 4}, {"beam": 1}, (None, 1)),
    ],
)
def test_a_single_result_needs_no_judge(
    own: dict[str, int], asked: dict[str, int], kept: tuple[str | None, int]
) -> None:
    served = regard.NATSettings(**own, rerank=Path("judge"))
    chosen = choose_search(served, {"search": asked})
    assert isinstance(chosen, regard.NATSettings)
    assert (chosen.rerank and str(chosen.rerank), chosen.n_best) == kept
    assert {key: getattr(chosen, key) for key in asked} == asked


def test_a_model_that_writes_at_once_shows_its_rounds(engine: TranslationEngine) -> None:
    vocabularies = engine.translator.vocabularies
    config = NATransformerConfig.base(
        len(vocabularies.source), width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1, length_reach=1
    )
    torch.manual_seed(0)
    translator = regard.Translator(NATransformer(config).eval(), vocabularies)
    (canvas,) = show_beam(translator, translator.fit(), {"text": TEXT})["canvases"]
    assert len(canvas["rounds"]) == translator.fit().resolved()["iterations"] > 1
    assert not all(canvas["rounds"][-1]["written"])
    assert all(canvas["rounds"][0]["written"])
    last = canvas["rounds"][-1]
    read = record_translation(translator, TEXT, None).labels["decoder_input"]
    assert [label == "MASK" for label in read] == last["written"]
    assert "MASK" in read
    once = translator.fit().changed(iterations=1)
    at_first = record_translation(translator, TEXT, None, once).labels["decoder_input"]
    assert set(at_first) == {"MASK"}  # as the server searches, all of it is new in the only round
    found = show_beam(translator, translator.fit().changed(iterations=2, lengths=3), {"text": TEXT})
    assert (found["tree"], found["length"]) == ([], "classifier")
    assert len({len(one["rounds"][0]["pieces"]) for one in found["canvases"]}) == 3
    assert {len(one["rounds"]) for one in found["canvases"]} == {2}
    scores = [one["score"] for one in found["canvases"]]
    assert scores == sorted(scores, reverse=True)
    assert (found["text"], found["score"]) == (found["canvases"][0]["text"], scores[0])


def test_changes_last_as_long_as_the_question(engine: TranslationEngine) -> None:
    plain = {"factors": {}, "sharpness": 1.0, "search": {}}
    before = ask(engine, "change", **plain)["translation"]
    off = {"decoder.0.cross": {0: 0.0, 1: 0.0}, "decoder.1.cross": {0: 0.0, 1: 0.0}}
    assert ask(engine, "change", **plain | {"factors": off})["translation"]["text"] != before["text"]
    assert ask(engine, "change", **plain | {"sharpness": 0.1})["translation"]["score"] != before["score"]
    drawn = ask(engine, "change", **plain | {"search": {"temperature": 3.0, "seed": 4}})["translation"]
    assert drawn["tokens"] != before["tokens"]
    assert ask(engine, "change", **plain)["translation"] == before


def test_scores_can_be_flattened(offline: regard.Translator) -> None:
    name = "decoder.1.cross"
    with scale_scores(offline.model, 1e-4), probe(offline.model, [name]) as seen:
        offline(TEXT)
    weights = seen[name].weights
    assert weights == pytest.approx(torch.full_like(weights, 1 / weights.shape[-1]), abs=1e-2)
    with probe(offline.model, [name]) as again:
        offline(TEXT)
    assert again[name].weights.max() > 0.5
    with pytest.raises(UserError, match="greater than 0"), scale_scores(offline.model, 0.0):
        pass


def test_positions_are_alike_to_themselves(engine: TranslationEngine) -> None:
    about, arrays = unpack(show_positions(engine.translator.model, {"length": 16}))
    assert about["encodings"][0]["places"] == 16
    assert np.diag(arrays["similarity0"]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("operation", "asked", "sentence"),
    [
        ("attention", {"text": "  ", "target": None}, "sentence is blank"),
        ("attention", {"target": [10**6]}, "go from 0"),
        (
            "map",
            {"target": None, "name": "decoder.9.cross", "head": 0, "quantity": "weights"},
            "is not an attention module",
        ),
        ("map", {"target": None, "name": "decoder.1.cross", "head": 9, "quantity": "weights"}, "no head 9"),
        ("map", {"target": None, "name": "decoder.1.cross", "head": None, "quantity": "scores"}, "choose a head"),
        ("arithmetic", {"target": None, "name": "decoder.1.cross", "head": 0, "query": 99}, "no query 99"),
        ("beam", {"search": {"iterations": 3}}, "another way"),
        ("change", {"factors": {"x": {0: 1.0}}, "sharpness": 1.0, "search": {}}, "is not an attention module"),
    ],
)
def test_what_cannot_be_shown_is_said(
    engine: TranslationEngine, operation: str, asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        ask(engine, operation, **asked)


def test_a_sentence_that_is_too_long_is_refused(server: Running) -> None:
    asked = {"text": "apples " * 600, "target": []}
    answer = httpx.post(f"{server.url}/api/inspect/attention", json=asked, timeout=60)
    assert answer.status_code == 400
    assert "up to 512" in answer.json()["error"]
    assert httpx.get(f"{server.url}/page/../engine.py", timeout=60).status_code == 404
