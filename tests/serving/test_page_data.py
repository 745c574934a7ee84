"""Views of the page: they show the model's own numbers."""

import json
from collections import Counter
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
from regard.models.vit import ViT, ViTConfig
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import TranslationRunner, change_search
from regard.serving.page_data.packet import LARGEST_CODES, pack
from regard.serving.page_data.positions import view_positions
from regard.serving.page_data.text import view_beam
from regard.serving.page_schemas import TokenGraphView
from tests.serving.server_process import ServerProcess

TEXT = "I love apples and books"


@pytest.fixture(scope="module")
def runner(trained_run: Path) -> TranslationRunner:
    return TranslationRunner(LoadRequest("toy", trained_run, "cpu"))


@pytest.fixture(scope="module")
def target(runner: TranslationRunner) -> list[int]:
    content, _ = view(runner, "translation", n_best=2)
    tokens: list[int] = content["hypotheses"][0]["tokens"]
    return tokens


def view(runner: TranslationRunner, operation: str, **fields: Any) -> Any:
    (result,) = runner.run(operation, [{"text": TEXT} | fields], {})
    return unpack(result) if isinstance(result, bytes) else result


def unpack(packet: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the content and the arrays of a packet; values that were not finite are NaN."""
    start = 4 + int.from_bytes(packet[:4], "little")
    head = json.loads(packet[4:start])
    arrays = {}
    for name, header in head["arrays"].items():
        dtype = "u1" if header["type"] == "b1" else f"<{header['type']}"
        size = int(np.prod(header["shape"]))
        values = np.frombuffer(packet, dtype, size, start + header["offset"]).astype(float)
        if "low" in header:
            not_finite = LARGEST_CODES[header["type"]]
            step = (header["high"] - header["low"]) / (not_finite - 1)
            values = header["low"] + np.where(values == not_finite, np.nan, values) * step
        arrays[name] = values.reshape(header["shape"])
    return head["content"], arrays


def test_packets_keep_content_and_arrays() -> None:
    maps = np.array([[0.0, 1.0, -np.inf], [-0.5, 0.25, 0.125]])
    exact = np.array([1.5, -np.inf], np.float32)
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    packet = pack({"名": "<b>"}, {"maps": (maps, "u2"), "exact": (exact, "f4"), "pixels": (pixels, "b1")})
    content, arrays = unpack(packet)
    assert content == {"名": "<b>"}
    assert arrays["maps"] == pytest.approx(np.where(np.isinf(maps), np.nan, maps), abs=2e-5, nan_ok=True)
    assert (arrays["exact"] == exact).all()
    assert (arrays["pixels"] == pixels).all()


def test_translations_have_alignments(runner: TranslationRunner, translator: regard.Translator) -> None:
    content, arrays = view(runner, "translation", n_best=3)
    settings = runner.settings.changed(n_best=3, beam=max(3, runner.settings.beam_width))
    expected = translator.hypotheses([TEXT], settings)[0]
    assert [hypothesis["text"] for hypothesis in content["hypotheses"]] == [one.text for one in expected]
    assert arrays["alignment0"].shape == (len(content["hypotheses"][0]["labels"]), len(content["source"]))
    assert arrays["alignment0"].sum(1) == pytest.approx(1, abs=1e-2)


def test_page_does_not_widen_the_beam_of_the_server(trained_run: Path) -> None:
    narrow = TranslationRunner(LoadRequest("toy", trained_run, "cpu", search={"beam": 2}))
    content, _ = view(narrow, "translation", n_best=4)
    found = view(narrow, "beam", search={})
    assert (found["settings"]["beam"], len(content["hypotheses"])) == (2, 2)
    assert found["text"] == content["hypotheses"][0]["text"]


@pytest.mark.parametrize("name", ["encoder.1.attention", "decoder.0.attention", "decoder.1.cross"])
def test_maps_equal_the_probed_weights_and_scores(
    runner: TranslationRunner, translator: regard.Translator, target: list[int], name: str
) -> None:
    with probe(translator.model, [name], record=["weights", "scores"]) as records:
        translator(TEXT)
    content, arrays = view(runner, "map", target=target, name=name, head=1, quantity="weights")
    assert arrays["map"] == pytest.approx(records[name].weights[0, 1].numpy(), abs=1e-4)
    assert arrays["map"].shape == (len(content["rows"]), len(content["columns"]))
    _, mean = view(runner, "map", target=target, name=name, head=None, quantity="weights")
    assert mean["map"] == pytest.approx(records[name].weights[0].mean(0).numpy(), abs=1e-4)
    _, scores = view(runner, "map", target=target, name=name, head=0, quantity="scores")
    expected = records[name].scores[0, 0].numpy()
    assert (np.isnan(scores["map"]) == np.isinf(expected)).all()
    assert scores["map"][np.isfinite(expected)] == pytest.approx(expected[np.isfinite(expected)], abs=1e-2)


def test_overview_contains_every_head(runner: TranslationRunner, target: list[int]) -> None:
    content, arrays = view(runner, "attention", target=target)
    assert [module["name"] for module in content["views"]] == list(arrays)
    for module in content["views"]:
        assert arrays[module["name"]].shape[0] == module["heads"] + 1
        assert arrays[module["name"]].max() == pytest.approx(1, abs=0.5)


def test_each_step_of_the_arithmetic_follows_from_the_previous_one(
    runner: TranslationRunner, target: list[int]
) -> None:
    name = "decoder.1.attention"
    content, arrays = view(runner, "arithmetic", target=target, name=name, head=1, query=2)
    assert arrays["products"] == pytest.approx(arrays["k"] @ arrays["q"], rel=1e-4)
    allowed = np.isfinite(arrays["scores"])
    assert allowed.tolist() == [key <= 2 for key in range(len(content["columns"]))]
    assert arrays["scores"][allowed] == pytest.approx(arrays["products"][allowed] * content["scale"], rel=1e-4)
    exponentials = np.exp(arrays["scores"])
    assert arrays["weights"] == pytest.approx(exponentials / exponentials.sum(), abs=1e-5)
    assert arrays["heads"][1] == pytest.approx(arrays["weights"] @ arrays["v"], abs=1e-4)
    out = runner.translator.model.get_submodule(f"{name}.out")
    joined = torch.from_numpy(arrays["heads"].reshape(1, -1)).float()
    assert arrays["output"] == pytest.approx(out(joined)[0].detach().numpy(), abs=1e-4)
    assert content["softmax"]


def test_beam_tree_contains_kept_finished_and_dropped_hypotheses(runner: TranslationRunner) -> None:
    found = view(runner, "beam", search={"beam": 3, "alpha": 0.5})
    tree = found["tree"]
    assert {node["outcome"].split(":")[0] for node in tree} == {"kept", "ended", "dropped"}
    assert all(node["parent"] == -1 or tree[node["parent"]]["step"] == node["step"] - 1 for node in tree)
    assert found["settings"]["alpha"] == 0.5
    translation, _ = view(runner, "translation", n_best=4)
    assert view(runner, "beam", search={})["text"] == translation["hypotheses"][0]["text"]
    assert (found["length"], found["candidates"]) == (None, [])


@pytest.mark.parametrize(
    ("settings", "options", "rerank", "n_best"),
    [
        ({"lengths": 3, "n_best": 2}, {"lengths": 1}, None, 1),
        ({"lengths": 3, "n_best": 3}, {"lengths": 2}, Path("reranker"), 2),
        ({"lengths": 3, "n_best": 2}, {"iterations": 2}, Path("reranker"), 2),
        ({"beam": 4}, {"beam": 1}, None, 1),
    ],
)
def test_single_candidate_is_not_reranked(
    settings: dict[str, int], options: dict[str, int], rerank: Path | None, n_best: int
) -> None:
    changed = change_search(regard.NATSettings(**settings, rerank=Path("reranker")), options)
    assert isinstance(changed, regard.NATSettings)
    assert (changed.rerank, changed.n_best) == (rerank, n_best)
    assert {key: getattr(changed, key) for key in options} == options


def test_nat_candidates_have_iterations(runner: TranslationRunner) -> None:
    vocabularies = runner.translator.vocabularies
    config = NATransformerConfig.base(
        len(vocabularies.source), width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1, max_length_offset=1
    )
    torch.manual_seed(0)
    translator = regard.Translator(NATransformer(config).eval(), vocabularies)
    settings = translator.resolve_settings()
    (candidate,) = view_beam(translator, settings, {"text": TEXT})["candidates"]
    first, *_, last = candidate["iterations"]
    assert len(candidate["iterations"]) == settings.resolved()["iterations"]
    assert all(first["predicted"])
    assert not all(last["predicted"])
    decoder_input = record_translation(translator, TEXT, None).labels["decoder_input"]
    assert [label == "MASK" for label in decoder_input] == last["predicted"]
    assert "MASK" in decoder_input
    single = record_translation(translator, TEXT, None, settings.changed(iterations=1))
    assert set(single.labels["decoder_input"]) == {"MASK"}
    found = view_beam(translator, settings.changed(iterations=2, lengths=3), {"text": TEXT})
    candidates = found["candidates"]
    assert (found["tree"], found["length"], found["graph"]) == ([], "classifier", None)
    assert len({len(one["iterations"][0]["tokens"]) for one in candidates}) == 3
    assert {len(one["iterations"]) for one in candidates} == {2}
    scores = [one["score"] for one in candidates]
    assert scores == sorted(scores, reverse=True)
    assert (found["text"], found["score"]) == (candidates[0]["text"], scores[0])


def test_graph_contains_the_path_of_every_search(runner: TranslationRunner) -> None:
    vocabularies = runner.translator.vocabularies
    config = NATransformerConfig.tiny(len(vocabularies.source), length="dag", upsample_ratio=3)
    torch.manual_seed(0)
    translator = regard.Translator(NATransformer(config).eval(), vocabularies)
    settings = translator.resolve_settings(regard.NATSettings(path="viterbi", alpha=0.5))
    found = view_beam(translator, settings, {"text": TEXT})
    graph = TokenGraphView(**found["graph"])
    vertices = 3 * (len(vocabularies.source.encode(TEXT)) + 1) + config.upsample_extra
    assert len(graph.tokens) == len(graph.probabilities) == len(graph.visits) == vertices
    assert [path.search for path in graph.paths] == ["viterbi", "greedy", "lookahead", "beam"]
    assert (found["text"], found["score"], found["candidates"]) == (graph.paths[0].text, graph.paths[0].score, [])
    for path in graph.paths:
        changes = {"beam": 4, "path": "lookahead"} if path.search == "beam" else {"path": path.search}
        assert path.text == translator.hypotheses([TEXT], settings.changed(**changes))[0][0].text
        assert path.vertices == sorted(set(path.vertices)) and path.vertices[-1] == vertices - 1
        assert len(path.tokens) == len(path.transitions) == len(path.vertices)
    assert graph.visits[0] == graph.visits[-1] == 1
    assert sum(graph.visits[to] > 0 for _, to, _ in graph.transitions) == len(graph.transitions)
    assert all(start < end and 0 < probability <= 1 for start, end, probability in graph.transitions)
    assert max(Counter(start for start, _, _ in graph.transitions).values()) <= 4
    wide = change_search(settings, {"beam": 3})
    assert isinstance(wide, regard.NATSettings)
    assert (wide.beam, wide.path) == (3, "lookahead")


def test_interventions_apply_to_one_request_only(runner: TranslationRunner) -> None:
    unchanged = {"factors": {}, "sharpness": 1.0, "search": {}}
    before = view(runner, "change", **unchanged)["translation"]
    heads_off = {"decoder.0.cross": {0: 0.0, 1: 0.0}, "decoder.1.cross": {0: 0.0, 1: 0.0}}
    assert view(runner, "change", **unchanged | {"factors": heads_off})["translation"]["text"] != before["text"]
    assert view(runner, "change", **unchanged | {"sharpness": 0.1})["translation"]["score"] != before["score"]
    sampled = view(runner, "change", **unchanged | {"search": {"temperature": 3.0, "seed": 4}})["translation"]
    assert sampled["tokens"] != before["tokens"]
    assert view(runner, "change", **unchanged)["translation"] == before


def test_scaling_scores_towards_zero_makes_attention_uniform(translator: regard.Translator) -> None:
    name = "decoder.1.cross"
    with scale_scores(translator.model, 1e-4), probe(translator.model, [name]) as scaled:
        translator(TEXT)
    weights = scaled[name].weights
    assert weights == pytest.approx(torch.full_like(weights, 1 / weights.shape[-1]), abs=1e-2)
    with probe(translator.model, [name]) as unscaled:
        translator(TEXT)
    assert unscaled[name].weights.max() > 0.5
    with pytest.raises(UserError, match="greater than 0"), scale_scores(translator.model, 0.0):
        pass


def test_positions_are_most_similar_to_themselves(runner: TranslationRunner) -> None:
    content, arrays = unpack(view_positions(runner.translator.model, {"length": 16}))
    assert [encoding["name"] for encoding in content["encodings"]] == [
        "source_embedding.positions, target_embedding.positions"
    ]
    assert arrays["encoding0"].shape[0] == 16
    assert np.diag(arrays["similarity0"]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "class"])
def test_learned_positions_of_patches_are_shown_without_that_of_the_class_token(pooling: str) -> None:
    model = ViT(ViTConfig.micro(3, image=16, patch=4, positions="learned", pooling=pooling))
    content, arrays = unpack(view_positions(model, {"length": 3}))
    assert content["encodings"] == [{"name": "positions", "kind": "Learned"}]
    patches = model.positions.detach()[-16:].double()
    assert arrays["encoding0"] == pytest.approx(patches.numpy(), abs=1e-4)
    expected = torch.nn.functional.cosine_similarity(patches[:, None], patches, dim=-1)
    assert arrays["similarity0"] == pytest.approx(expected.numpy(), abs=1e-3)


@pytest.mark.parametrize(
    ("operation", "fields", "message"),
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
        ("beam", {"search": {"iterations": 3}}, "does not have this search setting"),
        ("change", {"factors": {"x": {0: 1.0}}, "sharpness": 1.0, "search": {}}, "is not an attention module"),
    ],
)
def test_invalid_requests_are_rejected_with_a_message(
    runner: TranslationRunner, operation: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        view(runner, operation, **fields)


def test_sentences_over_the_limit_are_rejected(server: ServerProcess) -> None:
    body = {"text": "apples " * 600, "target": []}
    response = httpx.post(f"{server.url}/api/inspect/attention", json=body, timeout=300)
    assert response.status_code == 400
    assert "at most 512 tokens can be inspected" in response.json()["error"]
