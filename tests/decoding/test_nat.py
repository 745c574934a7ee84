"""Writing all tokens at once: passes, lengths, END and CTC, held to plain readings of what they should do."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.decoding.config import NATSettings, SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.ctc import collapse
from regard.decoding.nat import LENGTH_SHARE, NATGenerator, NATHypothesis, score_canvas
from regard.decoding.nat_fill import least_certain
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError
from regard.models.nat import NATransformer, NATransformerConfig

VOCAB, PAD, MASK, EOS = 60, 0, 1, 2
LENGTHS = ("classifier", "end", "ctc")


def decided_model(length: str, **changes: object) -> NATransformer:
    """Random weights, precise enough that no rounding error decides between two words."""
    torch.manual_seed(3)
    values = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 2, "hidden": 64, "length_reach": 4}
    model = NATransformer(NATransformerConfig.base(VOCAB, **values | {"length": length} | changes))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            # Signs at random: else the embedding, which is also the output, makes every word say itself again.
            nn.init.normal_(module.weight)
            module.weight.data.sign_()
        elif isinstance(module, Attention):  # looks at one token, not at the mean of all
            module.qkv.weight.data.mul_(4)
    last = model.decoder[-1].around_feed_forward.norm
    last.weight.data.mul_(3)
    for token, often in {"end": [(EOS, 10)], "ctc": [(PAD, 1)]}.get(length, []):
        last.bias.data.add_(often * model.target_embedding.weight.data[token])
    if length == "classifier":
        nn.init.normal_(model.length.weight, std=3)
    return model.eval().requires_grad_(False).double()


MODELS = {length: decided_model(length) for length in LENGTHS}
DRAW = random.Random(5)
SENTENCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(0, 12))] for _ in range(60)]
WAYS = {
    "one pass": ("classifier", NATSettings(iterations=1)),
    "four iterations": ("classifier", NATSettings(iterations=4)),
    "ten iterations": ("classifier", NATSettings(iterations=10)),
    "three lengths": ("classifier", NATSettings(iterations=3, lengths=3, n_best=3)),
    "end": ("end", NATSettings()),
    "ctc": ("ctc", NATSettings()),
    "ctc beam": ("ctc", NATSettings(beam=4, n_best=2)),
}


def write(
    length: str, sources: list[list[int]], settings: NATSettings | None = None, trace: bool = False
) -> list[list[NATHypothesis]]:
    generator = NATGenerator(MODELS[length])
    fitted = generator.resolve_settings(settings or NATSettings(), DecodingRequest(()), trees=False, snapshots=False)
    found = generator.generate([DecodingRequest(source) for source in sources], fitted, trace)
    return [[one for one in best if isinstance(one, NATHypothesis)] for best in found]


def logp(model: NATransformer, source: list[int], canvas: list[int]) -> Tensor:
    """What the model says at every place, alone and without any layout."""
    found = model(torch.tensor([[*source, EOS]]), torch.tensor([canvas]))[0].log_softmax(-1)
    found[:, model.config.forbidden_tokens] = -math.inf
    return found


@pytest.mark.parametrize("way", WAYS)
def test_company_and_order_change_nothing(way: str) -> None:
    length, settings = WAYS[way]
    alone = [write(length, [source], settings, trace=True)[0] for source in SENTENCES]
    order = random.Random(1).sample(range(len(SENTENCES)), len(SENTENCES))
    for batch in (7, 60):
        for start in range(0, len(order), batch):
            members = order[start : start + batch]
            together = write(length, [SENTENCES[i] for i in members], settings, trace=True)
            for i, best in zip(members, together, strict=True):
                assert [one.tokens for one in best] == [one.tokens for one in alone[i]]
                assert [one.score for one in best] == pytest.approx([one.score for one in alone[i]], abs=1e-4)
                assert [seen_of(one) for one in best] == [seen_of(one) for one in alone[i]]
    assert len({tuple(best[0].tokens) for best in alone}) > 20


def seen_of(found: NATHypothesis) -> list[tuple[list[int], list[bool]]]:
    """What stood on the canvas after each pass, and what that pass wrote."""
    return [(seen.tokens, seen.written) for seen in found.iterations]


# Mask-predict


def refine_plainly(model: NATransformer, source: list[int], places: int, iterations: int) -> tuple[list[int], float]:
    """Mask-predict, read out of the paper for one sentence, in Python lists."""
    tokens, gains = [MASK] * places, [0.0] * places
    hidden = set(range(places))
    for done in range(iterations):
        if done:
            count = places * (iterations - done) // iterations
            hidden = set(sorted(range(places), key=lambda place: gains[place])[:count])
            if not hidden:
                break
        canvas = [MASK if place in hidden else token for place, token in enumerate(tokens)]
        said = logp(model, source, canvas)
        for place in hidden:
            gain, token = said[place].max(-1)
            tokens[place], gains[place] = int(token), float(gain)
    further = places - len(source)
    length = model.length_logits(model.encode(torch.tensor([[*source, EOS]])))[0].log_softmax(-1)[4 + further]
    return tokens, sum(gains) / places + LENGTH_SHARE * float(length)


@pytest.mark.parametrize("iterations", [1, 2, 4, 10])
def test_rounds_do_what_the_paper_says(iterations: int) -> None:
    model = MODELS["classifier"]
    for source, (best,) in zip(
        SENTENCES[:20], write("classifier", SENTENCES[:20], NATSettings(iterations=iterations)), strict=True
    ):
        expected, score = refine_plainly(model, source, len(best.tokens), iterations)
        assert best.tokens == expected
        assert best.score == pytest.approx(score, abs=1e-4)


def test_more_rounds_change_what_is_written() -> None:
    once = write("classifier", SENTENCES, NATSettings(iterations=1))
    often = write("classifier", SENTENCES, NATSettings(iterations=4))
    assert sum(a[0].tokens != b[0].tokens for a, b in zip(once, often, strict=True)) > 20


def test_the_least_certain_are_masked_again_and_padding_never() -> None:
    gains = torch.tensor([[-1.0, -3.0, -2.0, -9.0], [-1.0, -1.0, -2.0, -0.5]])
    hidden = least_certain(gains, torch.tensor([3, 4]), torch.tensor([2, 2]))
    assert hidden.tolist() == [[False, True, True, False], [True, False, True, False]]


def test_snapshots_show_every_round() -> None:
    (best,) = write("classifier", [SENTENCES[0]], NATSettings(iterations=3), trace=True)[0]
    assert len(best.iterations) == 3
    assert all(best.iterations[0].written)
    places = len(best.tokens)
    assert [sum(one.written) for one in best.iterations] == [places, places * 2 // 3, places // 3]
    assert best.iterations[-1].tokens == best.tokens
    assert best.iterations[-1].token_log_probs == pytest.approx(best.token_log_probs)
    for earlier, later in zip(best.iterations, best.iterations[1:], strict=False):
        kept = [place for place, written in enumerate(later.written) if not written]
        assert [earlier.tokens[place] for place in kept] == [later.tokens[place] for place in kept]


def test_a_short_canvas_has_no_rounds_in_which_nothing_is_written() -> None:
    alone, beside = [
        write("classifier", sources, NATSettings(iterations=10), trace=True) for sources in ([[]], [[], [9] * 12])
    ]
    for (best,) in (alone[0], beside[0]):
        assert len(best.iterations) < 10
        assert all(any(seen.written) for seen in best.iterations)
    assert len(beside[1][0].iterations) > len(beside[0][0].iterations)


# Lengths


def test_the_likeliest_lengths_are_tried_and_the_best_result_wins() -> None:
    model = MODELS["classifier"]
    for source, best in zip(
        SENTENCES[:20],
        write("classifier", SENTENCES[:20], NATSettings(iterations=2, lengths=3, n_best=3)),
        strict=True,
    ):
        read = torch.tensor([[*source, EOS]])
        order = model.length_logits(model.encode(read))[0].argsort(descending=True).tolist()
        likeliest = [n for n in (len(source) - 4 + place for place in order) if n >= 1][:3]
        expected = [refine_plainly(model, source, places, 2) for places in likeliest]
        expected.sort(key=lambda found: -found[1])
        assert [one.tokens for one in best] == [tokens for tokens, _ in expected]
        (only,) = write("classifier", [source], NATSettings(iterations=2, lengths=3))[0]
        assert only.tokens == best[0].tokens


@pytest.mark.parametrize("difference", [-4, -1, 4])
def test_a_length_guessed_wrong_is_kept_and_never_below_one(difference: int) -> None:
    model = decided_model("classifier")
    model.length.weight.zero_()
    model.length.bias[4 + difference] = 9.0
    found = NATGenerator(model).generate([DecodingRequest(source) for source in SENTENCES], NATSettings(iterations=2))
    for source, (best,) in zip(SENTENCES, found, strict=True):
        guessed = len(source) + difference
        assert len(best.tokens) == guessed if guessed >= 1 else len(best.tokens) >= 1
        assert not {PAD, MASK, EOS} & set(best.tokens)
        assert math.isfinite(best.score)


def test_learned_positions_bound_the_length() -> None:
    model = decided_model("classifier", positions="learned", max_length=8)
    model.length.weight.zero_()
    model.length.bias.copy_(torch.arange(9.0))  # the longer, the likelier
    (best,) = NATGenerator(model).generate([DecodingRequest([5] * 7)], NATSettings(iterations=2))[0]
    assert len(best.tokens) == 8
    long = NATGenerator(decided_model("ctc", positions="learned", max_length=8))
    assert len(long.generate([DecodingRequest([5] * 7)], NATSettings())[0][0].canvas) == 8  # type: ignore[attr-defined]


def test_more_lengths_than_there_are_gives_all_there_are() -> None:
    settings = NATSettings(iterations=1, lengths=50, n_best=50)
    assert [len(best) for best in write("classifier", [[7] * 9, []], settings)] == [9, 4]


def test_a_length_weighs_the_same_on_canvases_of_any_length() -> None:
    for places in (1, 5, 140):
        likely, unlikely = (score_canvas([-0.5] * places, length) for length in (-1.0, -15.0))
        assert likely - unlikely == pytest.approx(14 * LENGTH_SHARE)
    assert score_canvas([-0.5, -1.5], None) == -1.0
    assert score_canvas([], -2.0) == -2.0 * LENGTH_SHARE


def partly_taught(seen: dict[int, float]) -> NATransformer:
    """A model to which training has shown targets so many tokens longer than their source, and how often."""
    model = decided_model("classifier", length_reach=40).float()
    model.length.weight.copy_(torch.randn(1, 32).expand(81, -1))
    model.length.bias.fill_(-9.0)
    for further, often in seen.items():
        model.length.weight[40 + further] += 0.01 * torch.randn(32)
        model.length.bias[40 + further] = often
    return model


def lengths_tried(model: NATransformer, sources: list[list[int]], wanted: int) -> list[set[int]]:
    settings = NATSettings(iterations=1, lengths=wanted, n_best=wanted)
    found = NATGenerator(model).generate([DecodingRequest(source) for source in sources], settings)
    return [{len(one.tokens) for one in best} for best in found]


def test_lengths_that_training_never_saw_are_not_tried_where_there_are_others() -> None:
    model = partly_taught({-1: -12.0, 0: 0.0, 2: -1.0, 9: -15.0})  # two of them less likely than what was never seen
    assert lengths_tried(model, [[5] * 6], 3) == [{6, 8, 5}]
    assert lengths_tried(model, [[5] * 6], 8) == [{6, 8, 5, 15}]


def test_of_lengths_that_training_never_saw_the_nearest_and_then_the_shorter_are_tried() -> None:
    assert lengths_tried(partly_taught({}), [[5] * 6], 3) == [{6, 5, 7}]
    assert lengths_tried(partly_taught({}), [[5] * 6], 4) == [{6, 5, 7, 4}]
    assert lengths_tried(partly_taught({-9: 0.0}), [[5] * 6], 2) == [{6, 5}]  # what it saw would be less than nothing


@pytest.mark.parametrize("seen", [{}, {-1: -0.5, 0: 0.0, 3: -1.0}])
def test_which_lengths_are_tried_does_not_depend_on_company(seen: dict[int, float]) -> None:
    model = partly_taught(seen)
    together = lengths_tried(model, SENTENCES, 16)
    assert together == [tried for source in SENTENCES for tried in lengths_tried(model, [source], 16)]


# END


def test_what_follows_the_first_end_is_dropped() -> None:
    model = MODELS["end"]
    cut = 0
    for source, (best,) in zip(SENTENCES, write("end", SENTENCES), strict=True):
        places = 2 * (len(source) + 1) + 4
        gains, path = logp(model, source, [MASK] * places).max(-1)
        row = path.tolist()
        kept = row[: row.index(EOS)] if EOS in row else row
        assert best.tokens == kept
        said = len(kept) + (EOS in row)
        assert best.token_log_probs == pytest.approx(gains[:said].tolist(), abs=1e-4)
        cut += EOS in row
    assert 10 < cut < 60


def saying(length: str, token: int) -> NATransformer:
    """A model that says one token at every place."""
    model = decided_model(length)
    last = model.decoder[-1].around_feed_forward.norm
    last.weight.zero_()
    last.bias.copy_(9 * model.target_embedding.weight[token] / model.target_embedding.weight[token].norm())
    return model


def test_end_at_the_first_place_is_an_empty_translation_and_no_end_the_whole_canvas() -> None:
    (empty,) = NATGenerator(saying("end", EOS)).generate([DecodingRequest([5, 6])], NATSettings())[0]
    assert empty.tokens == []
    assert len(empty.token_log_probs) == 1
    (whole,) = NATGenerator(saying("end", 7)).generate([DecodingRequest([5, 6])], NATSettings())[0]
    assert whole.tokens == [7] * 10
    assert len(whole.token_log_probs) == 10


# CTC


def test_blanks_and_repetitions_go() -> None:
    model = MODELS["ctc"]
    for source, (best,) in zip(SENTENCES, write("ctc", SENTENCES), strict=True):
        places = 2 * (len(source) + 1) + 4
        gains, path = logp(model, source, [MASK] * places).max(-1)
        assert best.tokens == collapse(path.tolist(), PAD)
        assert best.score == pytest.approx(float(gains.sum()), abs=1e-3)
        assert [int(path[place]) for place in best.places] == best.tokens


@pytest.mark.parametrize("beam", [1, 3])
def test_nothing_but_blanks_is_an_empty_translation_and_one_token_throughout_is_that_token(beam: int) -> None:
    settings = NATSettings(beam=beam)
    (empty,) = NATGenerator(saying("ctc", PAD)).generate([DecodingRequest([5, 6])], settings)[0]
    assert (empty.tokens, empty.token_log_probs) == ([], [])
    (once,) = NATGenerator(saying("ctc", 7)).generate([DecodingRequest([5, 6])], settings)[0]
    assert once.tokens == [7]


def test_prefix_search_never_counts_more_than_there_is() -> None:
    generator = NATGenerator(MODELS["ctc"])
    paths = write("ctc", SENTENCES[:20])
    searched = write("ctc", SENTENCES[:20], NATSettings(beam=8, n_best=2))
    for source, (path,), best in zip(SENTENCES[:20], paths, searched, strict=True):
        assert best[0].score >= best[1].score
        judged = generator.score([source, source], [best[0].tokens, path.tokens], NATSettings())
        assert best[0].score <= judged[0].score + 1e-4
        assert judged[1].score >= path.score - 1e-4  # all paths together are likelier than one


# Scores of given translations


@pytest.mark.parametrize("length", ["classifier", "end"])
def test_one_pass_scores_its_own_translation_as_it_found_it(length: str) -> None:
    generator = NATGenerator(MODELS[length])
    found = [best[0] for best in write(length, SENTENCES, NATSettings(iterations=1))]
    judged = generator.score(SENTENCES, [one.tokens for one in found], NATSettings())
    for one, other in zip(found, judged, strict=True):
        assert other.score == pytest.approx(one.score, abs=1e-4)
        assert other.token_log_probs == pytest.approx(one.token_log_probs, abs=1e-4)


@pytest.mark.parametrize("length", ["end", "ctc"])
def test_a_target_longer_than_the_canvas_is_impossible(length: str) -> None:
    generator = NATGenerator(MODELS[length])
    (fits, long) = generator.score([[5], [5]], [[7, 8] * 4, [7, 8] * 5], NATSettings())
    assert fits.score > -math.inf
    assert long.score == -math.inf
    if length == "ctc":  # eight equal tokens need seven blanks between them
        (repeated,) = generator.score([[5]], [[7] * 8], NATSettings())
        assert repeated.score == -math.inf


def test_a_target_longer_than_learned_positions_is_impossible() -> None:
    generator = NATGenerator(decided_model("classifier", positions="learned", max_length=8))
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


# What a review shows


@pytest.mark.parametrize("way", WAYS)
def test_a_review_reads_the_canvas_of_the_last_pass(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    length, settings = WAYS[way]
    generator = NATGenerator(MODELS[length])
    found: list[TokenHypothesis] = [
        best[0] for best in generator.generate([DecodingRequest(s) for s in SENTENCES[:9]], settings)
    ]
    read: list[list[int]] = []
    decode = MODELS[length].decode

    def watch(canvas: Tensor, *others: object) -> Tensor:
        read.extend(canvas.tolist())
        return decode(canvas, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(MODELS[length], "decode", watch)
    generator.run_forward(SENTENCES[:9], found)
    for row, one in zip(read, found, strict=True):
        assert isinstance(one, NATHypothesis)
        assert row[: len(one.canvas)] == one.canvas
        assert len(generator.attention_rows(one)) == len(one.token_log_probs)


# What makes no sense


@pytest.mark.parametrize(
    ("length", "options", "said"),
    [
        ("ctc", {"iterations": 4}, "iterations 4 needs a model with length: classifier; this one has length: ctc"),
        ("end", {"iterations": 2}, "iterations 2 needs a model with length: classifier; this one has length: end"),
        ("ctc", {"lengths": 5}, "lengths 5 needs a model with length: classifier"),
        ("classifier", {"beam": 5}, "beam 5 needs a model with length: ctc; this one has length: classifier"),
        ("end", {"beam": 2}, "beam 2 needs a model with length: ctc"),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_name(length: str, options: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        write(length, [[5]], NATSettings.parse(options, "test"))


def test_wishes_trees_and_the_settings_of_a_search_are_refused_by_name() -> None:
    generator = NATGenerator(MODELS["ctc"])
    for request, trees, said in (
        (DecodingRequest((), prefix=(5,)), False, "prefix: needs an autoregressive model"),
        (DecodingRequest((), required=((5,),)), False, "required phrases: needs"),
        (DecodingRequest((), forbidden=((5,),)), False, "forbidden phrases: needs"),
        (DecodingRequest(()), True, "trees: needs"),
    ):
        with pytest.raises(UserError, match=said):
            generator.resolve_settings(NATSettings(), request, trees=trees, snapshots=False)
    with pytest.raises(UserError, match="this model is non-autoregressive: pass NATSettings, not SearchSettings"):
        generator.resolve_settings(SearchSettings(), DecodingRequest(()), trees=False, snapshots=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_best": 2}, "n_best 2 exceeds the 1 results that lengths and beam give"),
        ({"rerank": "runs/x"}, "rerank requires several results"),
        ({"iterations": 0}, "iterations: input should be greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        NATSettings.parse(options, "test")


def test_nothing_to_write_is_nothing_written() -> None:
    assert write("ctc", []) == []
