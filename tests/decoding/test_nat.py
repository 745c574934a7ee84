"""Non-autoregressive decoding is compared with simple implementations for one sentence."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.decoding.constraints import DecodingRequest, PhraseAutomaton
from regard.decoding.mask_predict import least_confident
from regard.decoding.nat import LENGTH_WEIGHT, NATGenerator, score_target
from regard.decoding.settings import NATSettings, SearchSettings
from regard.decoding.stepper import NATHypothesis, TokenHypothesis
from regard.errors import UserError
from regard.models.nat import MergePredictions, NATransformer, NATransformerConfig
from regard.ops.ctc import collapse

VOCAB, PAD, MASK, EOS = 60, 0, 1, 2
LENGTHS = ("classifier", "end", "ctc", "dag")


def peaked_model(length: str, **changes: object) -> NATransformer:
    """Return a model with random weights and peaked predictions, which rounding errors do not change."""
    torch.manual_seed(3)
    values = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 2, "hidden": 64, "max_length_offset": 4}
    if length == "dag":
        values["upsample_ratio"] = 3
    model = NATransformer(NATransformerConfig.base(VOCAB, **values | {"length": length} | changes))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            # Random signs: otherwise the tied embedding makes every position predict its input token.
            nn.init.normal_(module.weight)
            module.weight.data.sign_()
        elif isinstance(module, Attention):  # sharper attention weights
            module.qkv.weight.data.mul_(4)
        elif isinstance(module, MergePredictions):
            nn.init.normal_(module.linear.weight, std=module.linear.weight.shape[1] ** -0.5)
    last = model.decoder[-1].norm3
    last.weight.data.mul_(3)
    for token, scale in {"end": [(EOS, 10)], "ctc": [(PAD, 1)]}.get(length, []):
        last.bias.data.add_(scale * model.target_embedding.weight.data[token])
    if length == "classifier":
        nn.init.normal_(model.length.weight, std=3)
    if length == "dag":  # distinct transitions
        model.transitions.query.weight.data.mul_(4)
    return model.eval().requires_grad_(False).double()


MODELS = {length: peaked_model(length) for length in LENGTHS}
MODELS["layer predictions"] = peaked_model("ctc", layer_predictions=True, upsample_mode="mask")
DRAW = random.Random(5)
SENTENCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(0, 12))] for _ in range(60)]
CASES = {
    "one pass": ("classifier", NATSettings(iterations=1)),
    "four iterations": ("classifier", NATSettings(iterations=4)),
    "ten iterations": ("classifier", NATSettings(iterations=10)),
    "three lengths": ("classifier", NATSettings(iterations=3, lengths=3, n_best=3)),
    "end": ("end", NATSettings()),
    "ctc": ("ctc", NATSettings()),
    "ctc beam": ("ctc", NATSettings(beam=4, n_best=2)),
    "layer predictions": ("layer predictions", NATSettings()),
    "greedy path": ("dag", NATSettings(path="greedy")),
    "lookahead path": ("dag", NATSettings(alpha=0.5)),
    "best path": ("dag", NATSettings(path="viterbi")),
    "graph beam": ("dag", NATSettings(beam=4, n_best=2)),
}


def generate(
    length: str, sources: list[list[int]], settings: NATSettings | None = None, trace: bool = False
) -> list[list[NATHypothesis]]:
    generator = NATGenerator(MODELS[length])
    resolved = generator.resolve_settings(settings or NATSettings(), DecodingRequest(()), trees=False, snapshots=False)
    found = generator.generate([DecodingRequest(source) for source in sources], resolved, trace)
    return [[hypothesis for hypothesis in best if isinstance(hypothesis, NATHypothesis)] for best in found]


def log_probs_of(model: NATransformer, source: list[int], decoder_input: list[int]) -> Tensor:
    """Return the log-probabilities of one unpadded sentence, (T, V)."""
    found = model(torch.tensor([[*source, EOS]]), torch.tensor([decoder_input]))[0].log_softmax(-1)
    found[:, model.config.forbidden_tokens] = -math.inf
    return found


@pytest.mark.parametrize("case", CASES)
def test_results_do_not_depend_on_the_batch_or_its_order(case: str) -> None:
    length, settings = CASES[case]
    alone = [generate(length, [source], settings, trace=True)[0] for source in SENTENCES]
    order = random.Random(1).sample(range(len(SENTENCES)), len(SENTENCES))
    for batch in (7, 60):
        for start in range(0, len(order), batch):
            members = order[start : start + batch]
            together = generate(length, [SENTENCES[i] for i in members], settings, trace=True)
            for i, best in zip(members, together, strict=True):
                assert [one.tokens for one in best] == [one.tokens for one in alone[i]]
                assert [one.score for one in best] == pytest.approx([one.score for one in alone[i]], abs=1e-4)
                assert [updates_of(one) for one in best] == [updates_of(one) for one in alone[i]]
    assert len({tuple(best[0].tokens) for best in alone}) > 20


def updates_of(hypothesis: NATHypothesis) -> list[tuple[list[int], list[bool]]]:
    return [(iteration.tokens, iteration.updated) for iteration in hypothesis.iterations]


@pytest.mark.parametrize("length", LENGTHS)
def test_log_probs_are_those_of_a_pass_over_masks(length: str) -> None:
    targets = [[5, 6, 7], [8], [9, 10]]
    found = NATGenerator(MODELS[length]).log_probs(SENTENCES[:3], targets)
    for row, source, target in zip(found, SENTENCES[:3], targets, strict=True):
        config = MODELS[length].config
        positions = len(target) if length == "classifier" else int(config.upsampled_lengths(np.array(len(source) + 1)))
        expected = log_probs_of(MODELS[length], source, [MASK] * positions)
        torch.testing.assert_close(row[:positions].double(), expected, atol=1e-4, rtol=0)


def test_settings_without_iterations_give_one_pass() -> None:
    generator, requests = NATGenerator(MODELS["classifier"]), [DecodingRequest(source) for source in SENTENCES[:9]]
    assert generator.generate(requests, NATSettings()) == generator.generate(requests, NATSettings(iterations=1))


# Mask-predict


def reference_mask_predict(
    model: NATransformer, source: list[int], length: int, iterations: int
) -> tuple[list[int], float]:
    """Mask-predict for one sentence in plain Python; return its tokens and score."""
    tokens, log_probs = [MASK] * length, [0.0] * length
    hidden = set(range(length))
    for done in range(iterations):
        if done:
            count = length * (iterations - done) // iterations
            hidden = set(sorted(range(length), key=lambda position: log_probs[position])[:count])
            if not hidden:
                break
        decoder_input = [MASK if position in hidden else token for position, token in enumerate(tokens)]
        predicted = log_probs_of(model, source, decoder_input)
        for position in hidden:
            log_prob, token = predicted[position].max(-1)
            tokens[position], log_probs[position] = int(token), float(log_prob)
    length_logits = model.length_logits(model.encode(torch.tensor([[*source, EOS]])))[0]
    length_log_prob = float(length_logits.log_softmax(-1)[4 + length - len(source)])
    return tokens, sum(log_probs) / length + LENGTH_WEIGHT * length_log_prob


@pytest.mark.parametrize("iterations", [1, 2, 4, 10])
def test_mask_predict_agrees_with_the_reference(iterations: int) -> None:
    model = MODELS["classifier"]
    for source, (best,) in zip(
        SENTENCES[:20], generate("classifier", SENTENCES[:20], NATSettings(iterations=iterations)), strict=True
    ):
        expected, score = reference_mask_predict(model, source, len(best.tokens), iterations)
        assert best.tokens == expected
        assert best.score == pytest.approx(score, abs=1e-4)


def test_more_iterations_change_the_result() -> None:
    once = generate("classifier", SENTENCES, NATSettings(iterations=1))
    often = generate("classifier", SENTENCES, NATSettings(iterations=4))
    assert sum(a[0].tokens != b[0].tokens for a, b in zip(once, often, strict=True)) > 20


def test_the_least_confident_tokens_are_masked_but_never_padding() -> None:
    log_probs = torch.tensor([[-1.0, -3.0, -2.0, -9.0], [-1.0, -1.0, -2.0, -0.5]])
    hidden = least_confident(log_probs, torch.tensor([3, 4]), torch.tensor([2, 2]))
    assert hidden.tolist() == [[False, True, True, False], [True, False, True, False]]


def test_a_trace_has_every_iteration() -> None:
    (best,) = generate("classifier", [SENTENCES[0]], NATSettings(iterations=3), trace=True)[0]
    assert len(best.iterations) == 3
    assert all(best.iterations[0].updated)
    length = len(best.tokens)
    assert [sum(one.updated) for one in best.iterations] == [length, length * 2 // 3, length // 3]
    assert best.iterations[-1].tokens == best.tokens
    assert best.iterations[-1].token_log_probs == pytest.approx(best.token_log_probs)
    for earlier, later in zip(best.iterations, best.iterations[1:], strict=False):
        kept = [position for position, updated in enumerate(later.updated) if not updated]
        assert [earlier.tokens[i] for i in kept] == [later.tokens[i] for i in kept]


def test_short_targets_have_no_iteration_without_an_update() -> None:
    alone, beside = [
        generate("classifier", sources, NATSettings(iterations=10), trace=True) for sources in ([[]], [[], [9] * 12])
    ]
    for (best,) in (alone[0], beside[0]):
        assert len(best.iterations) < 10
        assert all(any(iteration.updated) for iteration in best.iterations)
    assert len(beside[1][0].iterations) > len(beside[0][0].iterations)


# Lengths


def test_the_most_probable_lengths_are_tried_and_the_best_result_wins() -> None:
    model = MODELS["classifier"]
    for source, best in zip(
        SENTENCES[:20],
        generate("classifier", SENTENCES[:20], NATSettings(iterations=2, lengths=3, n_best=3)),
        strict=True,
    ):
        tokens = torch.tensor([[*source, EOS]])
        order = model.length_logits(model.encode(tokens))[0].argsort(descending=True).tolist()
        lengths = [n for n in (len(source) - 4 + index for index in order) if n >= 1][:3]
        expected = [reference_mask_predict(model, source, length, 2) for length in lengths]
        expected.sort(key=lambda found: -found[1])
        assert [one.tokens for one in best] == [tokens for tokens, _ in expected]
        (only,) = generate("classifier", [source], NATSettings(iterations=2, lengths=3))[0]
        assert only.tokens == best[0].tokens


@pytest.mark.parametrize("difference", [-4, -1, 4])
def test_the_predicted_length_is_used_and_is_at_least_one(difference: int) -> None:
    model = peaked_model("classifier")
    model.length.weight.zero_()
    model.length.bias[4 + difference] = 9.0
    found = NATGenerator(model).generate([DecodingRequest(source) for source in SENTENCES], NATSettings(iterations=2))
    for source, (best,) in zip(SENTENCES, found, strict=True):
        predicted = len(source) + difference
        assert len(best.tokens) == predicted if predicted >= 1 else len(best.tokens) >= 1
        assert not {PAD, MASK, EOS} & set(best.tokens)
        assert math.isfinite(best.score)


def test_learned_positions_bound_the_length() -> None:
    model = peaked_model("classifier", positions="learned", max_length=8)
    model.length.weight.zero_()
    model.length.bias.copy_(torch.arange(9.0))  # longer targets are more probable
    (best,) = NATGenerator(model).generate([DecodingRequest([5] * 7)], NATSettings(iterations=2))[0]
    assert len(best.tokens) == 8
    long = NATGenerator(peaked_model("ctc", positions="learned", max_length=8))
    (clipped,) = long.generate([DecodingRequest([5] * 7)], NATSettings())[0]
    assert isinstance(clipped, NATHypothesis)
    assert len(clipped.decoder_input) == 8


def test_all_lengths_are_returned_if_there_are_fewer_than_requested() -> None:
    settings = NATSettings(iterations=1, lengths=50, n_best=50)
    assert [len(best) for best in generate("classifier", [[7] * 9, []], settings)] == [9, 4]


def test_the_weight_of_the_length_does_not_depend_on_the_length() -> None:
    for length in (1, 5, 140):
        likely, unlikely = (score_target([-0.5] * length, log_prob) for log_prob in (-1.0, -15.0))
        assert likely - unlikely == pytest.approx(14 * LENGTH_WEIGHT)
    assert score_target([-0.5, -1.5], None) == -1.0
    assert score_target([], -2.0) == -2.0 * LENGTH_WEIGHT


def model_trained_on(differences: dict[int, float]) -> NATransformer:
    """Return a model whose length classifier was trained on these length differences, with these logits."""
    model = peaked_model("classifier", max_length_offset=40).float()
    model.length.weight.copy_(torch.randn(1, 32).expand(81, -1))
    model.length.bias.fill_(-9.0)
    for difference, logit in differences.items():
        model.length.weight[40 + difference] += 0.01 * torch.randn(32)
        model.length.bias[40 + difference] = logit
    return model


def lengths_tried(model: NATransformer, sources: list[list[int]], count: int) -> list[set[int]]:
    settings = NATSettings(iterations=1, lengths=count, n_best=count)
    found = NATGenerator(model).generate([DecodingRequest(source) for source in sources], settings)
    return [{len(one.tokens) for one in best} for best in found]


def test_untrained_lengths_are_not_tried_if_there_are_trained_ones() -> None:
    model = model_trained_on({-1: -12.0, 0: 0.0, 2: -1.0, 9: -15.0})  # untrained lengths have logit -9
    assert lengths_tried(model, [[5] * 6], 3) == [{6, 8, 5}]
    assert lengths_tried(model, [[5] * 6], 8) == [{6, 8, 5, 15}]


def test_untrained_lengths_are_ordered_by_distance_and_then_shorter_first() -> None:
    assert lengths_tried(model_trained_on({}), [[5] * 6], 3) == [{6, 5, 7}]
    assert lengths_tried(model_trained_on({}), [[5] * 6], 4) == [{6, 5, 7, 4}]
    assert lengths_tried(model_trained_on({-9: 0.0}), [[5] * 6], 2) == [{6, 5}]  # the trained length would be negative


@pytest.mark.parametrize("differences", [{}, {-1: -0.5, 0: 0.0, 3: -1.0}])
def test_the_lengths_tried_do_not_depend_on_the_batch(differences: dict[int, float]) -> None:
    model = model_trained_on(differences)
    together = lengths_tried(model, SENTENCES, 16)
    assert together == [tried for source in SENTENCES for tried in lengths_tried(model, [source], 16)]


# END


def test_tokens_after_the_first_end_are_dropped() -> None:
    model = MODELS["end"]
    cut = 0
    for source, (best,) in zip(SENTENCES, generate("end", SENTENCES), strict=True):
        log_probs, path = log_probs_of(model, source, [MASK] * (2 * (len(source) + 1) + 4)).max(-1)
        row = path.tolist()
        kept = row[: row.index(EOS)] if EOS in row else row
        assert best.tokens == kept
        predicted = len(kept) + (EOS in row)
        assert best.token_log_probs == pytest.approx(log_probs[:predicted].tolist(), abs=1e-4)
        cut += EOS in row
    assert 10 < cut < 60


def constant_model(length: str, token: int) -> NATransformer:
    """Return a model that predicts one token at every position."""
    model = peaked_model(length)
    last = model.decoder[-1].norm3
    last.weight.zero_()
    last.bias.copy_(9 * model.target_embedding.weight[token] / model.target_embedding.weight[token].norm())
    return model


def test_end_at_the_first_position_gives_an_empty_translation_and_no_end_all_positions() -> None:
    (empty,) = NATGenerator(constant_model("end", EOS)).generate([DecodingRequest([5, 6])], NATSettings())[0]
    assert empty.tokens == []
    assert len(empty.token_log_probs) == 1
    (whole,) = NATGenerator(constant_model("end", 7)).generate([DecodingRequest([5, 6])], NATSettings())[0]
    assert whole.tokens == [7] * 10
    assert len(whole.token_log_probs) == 10


# CTC


def test_the_best_path_is_collapsed() -> None:
    model = MODELS["ctc"]
    for source, (best,) in zip(SENTENCES, generate("ctc", SENTENCES), strict=True):
        log_probs, path = log_probs_of(model, source, [MASK] * (2 * (len(source) + 1) + 4)).max(-1)
        assert best.tokens == collapse(path.tolist(), PAD)
        assert best.score == pytest.approx(float(log_probs.sum()), abs=1e-3)
        assert [int(path[position]) for position in best.positions] == best.tokens


@pytest.mark.parametrize("beam", [1, 3])
def test_only_blanks_give_an_empty_translation_and_a_repeated_token_gives_one_token(beam: int) -> None:
    settings = NATSettings(beam=beam)
    (empty,) = NATGenerator(constant_model("ctc", PAD)).generate([DecodingRequest([5, 6])], settings)[0]
    assert (empty.tokens, empty.token_log_probs) == ([], [])
    (once,) = NATGenerator(constant_model("ctc", 7)).generate([DecodingRequest([5, 6])], settings)[0]
    assert once.tokens == [7]


def test_prefix_search_never_overestimates_a_translation() -> None:
    generator = NATGenerator(MODELS["ctc"])
    paths = generate("ctc", SENTENCES[:20])
    searched = generate("ctc", SENTENCES[:20], NATSettings(beam=8, n_best=2))
    for source, (path,), best in zip(SENTENCES[:20], paths, searched, strict=True):
        assert best[0].score >= best[1].score
        scored = generator.score([source, source], [best[0].tokens, path.tokens], NATSettings())
        assert best[0].score <= scored[0].score + 1e-4
        assert scored[1].score >= path.score - 1e-4  # the sum over paths is at least one of them


# Graphs


def predict_graph(source: list[int]) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of tokens and of transitions of one graph, (L, V) and (L, L)."""
    model = MODELS["dag"]
    vertices = int(model.config.upsampled_lengths(np.array(len(source) + 1)))
    x = model.decode(torch.full((1, vertices), MASK), model.encode(torch.tensor([[*source, EOS]])))
    log_probs = model.logits(x)[0].log_softmax(-1)
    log_probs[:, model.config.forbidden_tokens] = -math.inf
    return log_probs, model.transitions(x, torch.tensor([vertices]))[0]


def follow(log_probs: Tensor, transitions: Tensor, lookahead: bool) -> tuple[list[int], float]:
    """Follow the best transitions from the first vertex; return the tokens and the log-probability of the path."""
    tokens, total, vertex, last = [], 0.0, 0, len(log_probs) - 1
    while vertex != last:
        gain = [float(log_probs[j].max()) if j != last else 0.0 for j in range(last + 1)]
        options = range(vertex + 1, last + 1)
        following = max(options, key=lambda j: float(transitions[vertex, j]) + lookahead * gain[j])
        total += float(transitions[vertex, following]) + gain[following]
        vertex = following
        if vertex != last:
            tokens.append(int(log_probs[vertex].argmax()))
    return tokens, total


@pytest.mark.parametrize("path", ["greedy", "lookahead"])
def test_paths_follow_the_best_transitions(path: str) -> None:
    settings = NATSettings.parse({"path": path}, "test")
    for source, (best,) in zip(SENTENCES[:20], generate("dag", SENTENCES[:20], settings), strict=True):
        graph = predict_graph(source)
        tokens, total = follow(*graph, path == "lookahead")
        assert best.tokens == tokens
        assert best.score == pytest.approx(total / (len(tokens) + 1), abs=1e-4)
        assert sum(best.token_log_probs) == pytest.approx(total, abs=1e-4)


def best_path(log_probs: Tensor, transitions: Tensor, alpha: float) -> tuple[float, list[int]]:
    """Return the score and tokens of the best path by trying, for each number of tokens, every previous vertex."""
    last, values = len(log_probs) - 1, log_probs.max(-1).values
    reached: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # by vertex
    found = []
    while reached:
        for vertex, (total, path) in reached.items():
            found.append(((total + float(transitions[vertex, last])) / (len(path) + 1) ** alpha, path))
        extended: dict[int, tuple[float, list[int]]] = {}
        for j in range(1, last):
            options = [
                (total + float(transitions[i, j] + values[j]), [*path, j])
                for i, (total, path) in reached.items()
                if i < j
            ]
            if options:
                extended[j] = max(options)
        reached = extended
    score, path = max(found)
    return score, [int(log_probs[v].argmax()) for v in path]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_viterbi_finds_the_best_path_relative_to_its_length(alpha: float) -> None:
    sources = SENTENCES[:4]
    for source, (best,) in zip(
        sources, generate("dag", sources, NATSettings(path="viterbi", alpha=alpha)), strict=True
    ):
        score, tokens = best_path(*predict_graph(source), alpha)
        assert best.tokens == tokens
        assert best.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("settings", [{}, {"path": "greedy"}, {"path": "viterbi"}, {"beam": 2}], ids=str)
def test_nan_transitions_are_reported(settings: dict[str, object]) -> None:
    model = peaked_model("dag")
    model.transitions.gate.bias.fill_(math.nan)
    with pytest.raises(UserError, match="NaN"):
        NATGenerator(model).generate([DecodingRequest([5, 6])], NATSettings.parse(settings, "test"))


def test_beam_search_in_a_graph_sums_over_all_paths() -> None:
    generator = NATGenerator(MODELS["dag"])
    searched = generate("dag", SENTENCES[:20], NATSettings(beam=4, n_best=2))
    for source, best, (path,) in zip(
        SENTENCES[:20], searched, generate("dag", SENTENCES[:20], NATSettings(path="viterbi")), strict=True
    ):
        scored = generator.score([source] * len(best), [one.tokens for one in best], NATSettings())
        assert [one.score for one in best] == pytest.approx([one.score for one in scored], abs=1e-4)
        assert best[0].score >= best[-1].score
        assert generator.score([source], [path.tokens], NATSettings())[0].score >= path.score - 1e-4


# Scoring given translations


@pytest.mark.parametrize("length", ["classifier", "end"])
def test_one_pass_gives_its_own_translation_the_same_score(length: str) -> None:
    generator = NATGenerator(MODELS[length])
    found = [best[0] for best in generate(length, SENTENCES, NATSettings(iterations=1))]
    scored = generator.score(SENTENCES, [one.tokens for one in found], NATSettings())
    for one, other in zip(found, scored, strict=True):
        assert other.score == pytest.approx(one.score, abs=1e-4)
        assert other.token_log_probs == pytest.approx(one.token_log_probs, abs=1e-4)


@pytest.mark.parametrize("length", ["end", "ctc", "dag"])
def test_a_target_with_more_tokens_than_positions_scores_minus_infinity(length: str) -> None:
    generator = NATGenerator(MODELS[length])
    (fits, long) = generator.score([[5], [5]], [[7, 8] * 4, [7, 8] * 5], NATSettings())
    assert fits.score > -math.inf
    assert long.score == -math.inf
    if length == "ctc":  # eight repeated tokens need seven blanks in between
        (repeated,) = generator.score([[5]], [[7] * 8], NATSettings())
        assert repeated.score == -math.inf


def test_a_target_longer_than_learned_positions_scores_minus_infinity() -> None:
    generator = NATGenerator(peaked_model("classifier", positions="learned", max_length=8))
    fits, long = generator.score([[5], [5]], [[7] * 8, [7] * 9], NATSettings())
    assert fits.score > -math.inf
    assert long.score == -math.inf
    assert long.tokens == [7] * 9


@pytest.mark.parametrize("length", LENGTHS)
def test_empty_sources_and_empty_targets_are_scored(length: str) -> None:
    generator = NATGenerator(MODELS[length])
    alone = generator.score([[]], [[]], NATSettings())[0]
    together = generator.score([[], [5, 6]], [[], [7]], NATSettings())
    assert math.isfinite(alone.score)
    assert together[0].score == pytest.approx(alone.score, abs=1e-4)


# Forward passes for attention hooks


@pytest.mark.parametrize("case", CASES)
def test_run_forward_repeats_the_last_iteration(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    length, settings = CASES[case]
    generator = NATGenerator(MODELS[length])
    found: list[TokenHypothesis] = [
        best[0] for best in generator.generate([DecodingRequest(s) for s in SENTENCES[:9]], settings)
    ]
    inputs: list[list[int]] = []
    decode = MODELS[length].decode

    def spy(decoder_input: Tensor, *others: object) -> Tensor:
        inputs.extend(decoder_input.tolist())
        return decode(decoder_input, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(MODELS[length], "decode", spy)
    generator.run_forward(SENTENCES[:9], found)
    for row, one in zip(inputs, found, strict=True):
        assert isinstance(one, NATHypothesis)
        assert row[: len(one.decoder_input)] == one.decoder_input
        assert len(generator.attention_rows(one)) == len(one.token_log_probs)


# Invalid settings


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        ("ctc", {"iterations": 4}, "iterations 4 needs a model with length: classifier; this one has length: ctc"),
        ("end", {"iterations": 2}, "iterations 2 needs a model with length: classifier; this one has length: end"),
        ("ctc", {"lengths": 5}, "lengths 5 needs a model with length: classifier"),
        ("classifier", {"beam": 5}, "beam 5 needs a model with length: ctc or dag; this one has length: classifier"),
        ("ctc", {"path": "viterbi"}, "path viterbi needs a model with length: dag; this one has length: ctc"),
        ("ctc", {"alpha": 0.5}, "alpha 0.5 needs a model with length: dag"),
        ("end", {"beam": 2}, "beam 2 needs a model with length: ctc or dag"),
    ],
)
def test_unsupported_settings_are_rejected(length: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(length, [[5]], NATSettings.parse(options, "test"))


def test_constraints_trees_and_search_settings_are_rejected() -> None:
    generator = NATGenerator(MODELS["ctc"])
    automaton = PhraseAutomaton(np.zeros((2, VOCAB), np.int64))
    for request, trees, message in (
        (DecodingRequest((), prefix=(5,)), False, "prefix: needs an autoregressive model"),
        (DecodingRequest((), required=((5,),)), False, "required phrases: needs"),
        (DecodingRequest((), forbidden=(automaton,)), False, "forbidden phrases: needs"),
        (DecodingRequest(()), True, "trees: needs"),
    ):
        with pytest.raises(UserError, match=message):
            generator.resolve_settings(NATSettings(), request, trees=trees, snapshots=False)
    with pytest.raises(UserError, match="this model is non-autoregressive: pass NATSettings, not SearchSettings"):
        generator.resolve_settings(SearchSettings(), DecodingRequest(()), trees=False, snapshots=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_best": 2}, "n_best 2 exceeds the 1 results that lengths and beam give"),
        ({"rerank": "runs/x"}, "rerank requires several results"),
        ({"path": "greedy", "beam": 2}, "path greedy and beam 2 exclude each other"),
        ({"iterations": 0}, "iterations: input should be greater than or equal to 1"),
    ],
)
def test_inconsistent_settings_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NATSettings.parse(options, "test")


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert generate("ctc", []) == []
