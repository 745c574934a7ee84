"""Search is compared with exhaustive enumeration on small step functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decoding.autoregressive import search_tokens
from regard.decoding.beam import TOP_K_CHUNK, top_k
from regard.decoding.constraints import DecodingRequest, PhraseAutomaton, RequiredPhrases
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import BeamNode, TokenHypothesis
from regard.errors import UserError

from .table import EOS, TableStepper, contains, has_repetition

VOCABULARY, LIMIT = 4, 4
EXHAUSTIVE_BEAM = 2 * (VOCABULARY - 1) ** LIMIT  # wide enough for all hypotheses
SOURCES = [[5, 6], [7], [8, 9, 10]]

words = st.integers(1, VOCABULARY - 1)
phrases = st.lists(words, min_size=1, max_size=2).map(tuple)
penalties = st.fixed_dictionaries(
    {
        "length_penalty": st.sampled_from(["none", "wu", "average"]),
        "alpha": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "coverage": st.sampled_from([0.0, 0.3]),
        "min_length": st.integers(0, 2),
        "no_repeat": st.integers(0, 2),
    }
).filter(lambda options: options["length_penalty"] != "none" or options["alpha"] == 1)


def recognise(phrase: tuple[int, ...]) -> PhraseAutomaton:
    """Return an automaton that recognises a sequence of tokens."""
    states = [phrase[:length] for length in range(len(phrase) + 1)]
    transitions = np.zeros((len(states), VOCABULARY), np.int64)
    for number, matched in enumerate(states):
        for token in range(VOCABULARY):
            suffixes = [state for state in states if (*matched, token)[-len(state) :] == state and state]
            transitions[number, token] = max(map(len, suffixes), default=0)
    transitions[-1] = len(phrase)
    return PhraseAutomaton(transitions)


def enumerate_best(
    stepper: TableStepper,
    request: DecodingRequest,
    options: SearchSettings,
    forbidden: tuple[tuple[int, ...], ...] = (),
) -> list[tuple[int, ...]]:
    """Return all translations that the constraints allow, best first."""
    allowed = [
        tokens
        for tokens in stepper.translations(LIMIT)
        if len(tokens) >= options.min_length
        and tokens[: len(request.prefix)] == request.prefix
        and all(contains(tokens, phrase) for phrase in request.required)
        and not any(contains(tokens, phrase) for phrase in forbidden)
        and not (options.no_repeat and has_repetition(tokens, options.no_repeat))
    ]
    return sorted(allowed, key=lambda tokens: -stepper.score(request.source, tokens, options))


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), options=penalties)
def test_an_exhaustive_beam_finds_the_optimum(seed: int, options: dict[str, object]) -> None:
    stepper = TableStepper(VOCABULARY, seed)
    chosen = SearchSettings.parse(options | {"beam": EXHAUSTIVE_BEAM, "max_length": LIMIT, "n_best": 3}, "test")
    found = search_tokens(stepper, SOURCES, chosen)
    for source, best in zip(SOURCES, found, strict=True):
        expected = enumerate_best(stepper, DecodingRequest(source), chosen)[:3]
        assert [tuple(one.tokens) for one in best] == expected
        for one in best:
            assert abs(one.score - stepper.score(source, one.tokens, chosen)) < 1e-9
            assert len(one.token_log_probs) == len(one.tokens) + 1


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    prefix=st.lists(words, max_size=2).map(tuple),
    required=st.lists(phrases, max_size=2).map(tuple),
    forbidden=st.lists(phrases, max_size=2).map(tuple),
)
def test_the_best_translation_under_constraints_is_found(
    seed: int, prefix: tuple[int, ...], required: tuple[tuple[int, ...], ...], forbidden: tuple[tuple[int, ...], ...]
) -> None:
    stepper = TableStepper(VOCABULARY, seed)
    chosen = SearchSettings(beam=EXHAUSTIVE_BEAM, max_length=LIMIT)
    automata = tuple(map(recognise, forbidden))
    requests = [DecodingRequest(source, prefix=prefix, required=required, forbidden=automata) for source in SOURCES]
    for request, best in zip(requests, search_tokens(stepper, requests, chosen), strict=True):
        expected = enumerate_best(stepper, request, chosen, forbidden)
        assert best, "there is always a result"
        assert tuple(best[0].tokens[: len(prefix)]) == prefix
        if expected:
            assert tuple(best[0].tokens) == expected[0]


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), required=st.lists(phrases, min_size=1, max_size=2).map(tuple))
def test_a_narrow_beam_contains_all_required_phrases(seed: int, required: tuple[tuple[int, ...], ...]) -> None:
    stepper = TableStepper(VOCABULARY, seed)
    requests = [DecodingRequest(source, required=required) for source in SOURCES]
    for beam in (1, 3, 5):
        for best in search_tokens(stepper, requests, SearchSettings(beam=beam, max_length=10)):
            assert all(contains(best[0].tokens, phrase) for phrase in required)


MIXED_REQUESTS = [
    DecodingRequest([5, 6]),
    DecodingRequest([7], prefix=(2,), required=((3, 3),)),
    DecodingRequest([8, 9, 10], prefix=(3, 1, 2), forbidden=(recognise((2, 3)),)),
    DecodingRequest([11], required=((1,), (2, 3)), forbidden=(recognise((1, 1)), recognise((3, 3)))),
    DecodingRequest([12], prefix=(1, 1, 1, 1, 1, 1)),
]


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3}, {"beam": 4, "groups": 2}, {"top_k": 3}], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_every_request_of_a_batch_has_its_own_constraints(seed: int, options: dict[str, object]) -> None:
    stepper = TableStepper(VOCABULARY, seed)
    chosen = SearchSettings.parse({"max_length": 6, "seed": seed if "top_k" in options else 0} | options, "test")
    requests = [replace(request, required=()) for request in MIXED_REQUESTS] if chosen.sampling else MIXED_REQUESTS
    for request, best in zip(requests, search_tokens(stepper, requests, chosen), strict=True):
        assert search_tokens(stepper, [request], chosen) == [best]
        assert tuple(best[0].tokens[: len(request.prefix)]) == request.prefix
        assert all(contains(best[0].tokens, phrase) for phrase in request.required)
        for automaton in request.forbidden:
            assert automaton.run(np.array(best[0].tokens)) < len(automaton.transitions) - 1


def test_a_prefix_may_be_longer_than_the_maximum_length() -> None:
    request = DecodingRequest([5], prefix=(1, 2, 3, 2, 1))
    for beam in (1, 3):
        (best,) = search_tokens(TableStepper(VOCABULARY), [request], SearchSettings(beam=beam, max_length=3))
        assert tuple(best[0].tokens) == request.prefix


def test_the_beam_is_divided_between_hypotheses_with_and_without_required_tokens() -> None:
    stepper = TableStepper(VOCABULARY)
    stepper.after = lambda row: torch.tensor([0.1, 0.5, 0.37, 0.03]).log()  # type: ignore[method-assign]
    request = DecodingRequest([5], required=((3,),))
    (best,) = search_tokens(stepper, [request], SearchSettings(beam=2, max_length=6), trace=True)
    kept = [node.token for node in tree_of(best) if node.step == 0 and node.outcome in ("kept", OUTBID)]
    assert sorted(kept) == [1, 3], "the best of both, though 2 is more probable than 3"


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), options=penalties)
def test_beam_search_of_width_one_equals_greedy_search(seed: int, options: dict[str, object]) -> None:
    stepper = TableStepper(VOCABULARY, seed)
    chosen = SearchSettings.parse(options | {"beam": 1, "max_length": 6, "coverage": 0.0}, "test")
    greedy = search_tokens(stepper, SOURCES, chosen)
    assert search_tokens(stepper, SOURCES, chosen, trace=True) == greedy  # a trace uses beam search


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), beam=st.integers(2, 5), options=penalties)
def test_exact_stopping_never_returns_a_worse_hypothesis(seed: int, beam: int, options: dict[str, object]) -> None:
    stepper = TableStepper(VOCABULARY, seed)
    base = options | {"beam": beam, "max_length": 8}
    exact = search_tokens(stepper, SOURCES, SearchSettings.parse(base | {"stop": "exact"}, "test"))
    first = search_tokens(stepper, SOURCES, SearchSettings.parse(base | {"stop": "first"}, "test"))
    for one, other in zip(exact, first, strict=True):
        assert one[0].score >= other[0].score


def test_exact_stopping_ends_before_the_limit_if_no_hypothesis_can_win() -> None:
    stepper = TableStepper(6, seed=3, sharpness=3.0)
    search_tokens(stepper, SOURCES, SearchSettings(beam=3, max_length=60, length_penalty="none"))
    assert stepper.steps < 30


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), order=st.permutations(range(6)))
def test_results_do_not_depend_on_the_batch_or_its_order(seed: int, order: list[int]) -> None:
    stepper = TableStepper(VOCABULARY, seed)
    sources = [[seed, n] for n in range(6)]
    for chosen in (
        SearchSettings(beam=1, max_length=8),
        SearchSettings(beam=3, max_length=8, n_best=2),
        SearchSettings(beam=4, groups=2, max_length=8, n_best=4),
        SearchSettings(temperature=1.3, top_k=3, n_best=2, max_length=8, seed=seed),
    ):
        together = search_tokens(stepper, sources, chosen)
        assert [search_tokens(stepper, [source], chosen)[0] for source in sources] == together
        shuffled = search_tokens(stepper, [sources[i] for i in order], chosen)
        assert [shuffled[order.index(i)] for i in range(6)] == together


def test_the_maximum_length_depends_on_the_source_and_every_hypothesis_ends() -> None:
    stepper = TableStepper(5, seed=1)
    stepper_after = stepper.after
    stepper.after = lambda row: stepper_after(row).index_fill(0, torch.tensor([EOS]), -1e4)  # type: ignore[method-assign]
    for beam in (1, 3):
        found = search_tokens(stepper, [[1], [1, 2, 3]], SearchSettings(beam=beam, max_ratio=2, max_extra=1))
        assert [len(best[0].tokens) + 1 for best in found] == [3, 7]
        assert all(best[0].token_log_probs[-1] <= -1e3 for best in found)


class Rounded(TableStepper):
    """Rounds log-probabilities, so that many hypotheses have equal scores."""

    def after(self, row: tuple[int, ...]) -> torch.Tensor:
        return (2 * super().after(row)).round() / 2


@pytest.mark.parametrize("seed", range(12))
def test_ties_do_not_depend_on_the_batch(seed: int) -> None:
    stepper = Rounded(VOCABULARY, seed)
    sources = [[seed, n] for n in range(7)]
    for stop in ("exact", "first"):
        chosen = SearchSettings.parse({"beam": 6, "n_best": 4, "stop": stop, "max_length": 6}, "test")
        assert [search_tokens(stepper, [source], chosen)[0] for source in sources] == search_tokens(
            stepper, sources, chosen
        )


class Endless(TableStepper):
    """Gives END a very low probability."""

    def after(self, row: tuple[int, ...]) -> torch.Tensor:
        log_probs = super().after(row)
        log_probs[EOS] -= 50
        return log_probs


@pytest.mark.parametrize("beam", [1, 3])
def test_each_sentence_has_its_own_maximum_length(beam: int) -> None:
    stepper = Endless(VOCABULARY, 3)
    sources = [[1] * n for n in range(1, 9)]
    chosen = SearchSettings(beam=beam, max_ratio=1.0, max_extra=0)
    together = search_tokens(stepper, sources, chosen)
    assert together == [search_tokens(stepper, [source], chosen)[0] for source in sources]
    assert [len(found[0].tokens) + 1 for found in together] == [len(source) for source in sources]


def tree_of(hypotheses: list[TokenHypothesis]) -> list[BeamNode]:
    tree = hypotheses[0].tree
    assert tree is not None
    return tree


def tokens_before(tree: list[BeamNode], end: BeamNode) -> tuple[int, ...]:
    """Return the tokens on the path to a node, without its own."""
    tokens, node = [], end.parent
    while node != -1:
        tokens, node = [tree[node].token, *tokens], tree[node].parent
    return tuple(tokens)


@pytest.mark.parametrize("seed", range(20))
def test_groups_keep_all_finished_hypotheses(seed: int) -> None:
    chosen = SearchSettings(beam=4, groups=2, n_best=4, max_length=6)
    (found,) = search_tokens(TableStepper(VOCABULARY, seed), [[seed, 1]], chosen, trace=True)
    tree = tree_of(found)
    scores = {tokens_before(tree, node): node.score for node in tree if node.outcome.startswith("ended")}
    assert [tuple(one.tokens) for one in found] == sorted(scores, key=lambda tokens: -scores[tokens])[:4]


def test_groups_differ_and_results_have_no_duplicates() -> None:
    stepper = TableStepper(8, seed=5, sharpness=1.0)
    plain = search_tokens(stepper, SOURCES, SearchSettings(beam=6, n_best=6, max_length=6))
    diverse = search_tokens(stepper, SOURCES, SearchSettings(beam=6, n_best=6, groups=3, diversity=3.0, max_length=6))

    def first_tokens(found: list[list[TokenHypothesis]]) -> int:
        return sum(len({tuple(one.tokens[:1]) for one in best}) for best in found)

    for best in diverse:
        assert len({tuple(one.tokens) for one in best}) == len(best)
    assert first_tokens(diverse) >= first_tokens(plain)
    assert first_tokens(diverse) >= 3 * len(SOURCES) - 1


def test_samples_follow_the_filtered_distribution() -> None:
    stepper = TableStepper(6, seed=2, sharpness=1.0)
    log_probs = stepper.after((3, stepper.bos))
    drawn = search_tokens(stepper, [[3]], SearchSettings(temperature=1.0, n_best=4000, max_length=3, max_extra=0))[0]
    first_tokens = torch.tensor([(one.tokens or [EOS])[0] for one in drawn])
    share = torch.bincount(first_tokens, minlength=6) / len(drawn)
    assert (share - log_probs.exp()).abs().max() < 0.03
    top = set(log_probs.topk(2).indices.tolist())
    drawn = search_tokens(stepper, [[3]], SearchSettings(top_k=2, n_best=200, max_length=2))[0]
    assert {(one.tokens or [EOS])[0] for one in drawn} == top
    drawn = search_tokens(stepper, [[3]], SearchSettings(top_p=1e-6, n_best=20, max_length=2))[0]
    assert {(one.tokens or [EOS])[0] for one in drawn} == {int(log_probs.argmax())}
    cold = search_tokens(stepper, [[3]], SearchSettings(temperature=1e-3, max_length=6))
    assert cold[0][0].tokens == search_tokens(stepper, [[3]], SearchSettings(beam=1, max_length=6))[0][0].tokens


def test_samples_depend_on_the_seed() -> None:
    stepper = TableStepper(8, seed=2, sharpness=0.5)

    def draw(seed: int) -> list[list[TokenHypothesis]]:
        return search_tokens(stepper, SOURCES, SearchSettings(temperature=1.0, n_best=3, seed=seed, max_length=8))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_the_tree_contains_the_path_to_the_result() -> None:
    stepper = TableStepper(VOCABULARY, seed=4)
    found = search_tokens(stepper, SOURCES, SearchSettings(beam=3, max_length=5), trace=True)
    for best in found:
        tree = tree_of(best)
        assert [e.node for e in tree] == list(range(len(tree)))
        ended = [e for e in tree if e.outcome == "ended"]
        winner = max(ended, key=lambda e: e.score)
        path = []
        node = winner
        while node.parent != -1:
            node = tree[node.parent]
            assert node.outcome == "kept"
            path.append(node.token)
        assert path[::-1] == best[0].tokens
        assert abs(winner.score - best[0].score) < 1e-9
        for step in range(max(e.step for e in tree) + 1):
            assert sum(e.step == step and e.outcome == "kept" for e in tree) <= 3
        for e in tree:
            previous = tree[e.parent].cumulative_log_prob if e.parent != -1 else 0.0
            assert abs(e.cumulative_log_prob - previous - e.log_prob) < 1e-6, "also of forbidden tokens"
        # Only END may follow at the maximum length; the tree has the forbidden tokens.
        assert all(e.outcome.startswith(("kept", "ended", "dropped: ", "forbidden: ")) for e in tree)
        assert {e.step for e in tree if e.outcome.startswith("forbidden")} <= {4}


OUTBID, BEATEN = "dropped: its continuations were outbid", "ended: others were better"
CANNOT_WIN, ENOUGH = "dropped: it could no longer win", "dropped: enough others had ended"
DUPLICATE = "ended: duplicate of another group"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"beam": 3}, {OUTBID, BEATEN, CANNOT_WIN}),
        ({"beam": 3, "n_best": 3, "coverage": 0.3}, {OUTBID, BEATEN}),
        ({"beam": 3, "stop": "first"}, {OUTBID, BEATEN, ENOUGH}),
        ({"beam": 1}, {ENOUGH}),
        ({"beam": 4, "groups": 2, "n_best": 2}, {OUTBID, BEATEN, DUPLICATE}),
    ],
    ids=["beam", "coverage", "first", "greedy", "groups"],
)
def test_the_tree_has_the_outcome_of_every_candidate(options: dict[str, object], expected: set[str]) -> None:
    outcomes = set()
    for seed in range(20):
        stepper = TableStepper(VOCABULARY, seed)
        chosen = SearchSettings.parse(options | {"max_length": 6}, "test")
        for best in search_tokens(stepper, SOURCES, chosen, trace=True):
            tree = tree_of(best)
            outcomes |= {e.outcome for e in tree}
            returned = [e for e in tree if e.outcome == "ended"]
            assert sorted(list(tokens_before(tree, e)) for e in returned) == sorted(one.tokens for one in best)
            for e in returned:
                node = e.parent
                while node != -1:
                    assert tree[node].outcome == "kept"
                    node = tree[node].parent
            continued = {e.parent for e in tree}
            for leaf in (e for e in tree if e.node not in continued):
                assert leaf.outcome == "ended" or ": " in leaf.outcome
            # Kept nodes have a child that was in the beam.
            final = {CANNOT_WIN, ENOUGH, OUTBID}
            extended = {e.parent for e in tree if e.outcome.startswith(("kept", "ended")) or e.outcome in final}
            assert all((e.node in extended) == (e.outcome == "kept") for e in tree)
    assert expected <= outcomes


@pytest.mark.parametrize(
    ("request_", "options", "reason"),
    [
        (DecodingRequest([5]), {"min_length": 3}, "it would end before min_length"),
        (DecodingRequest([5]), {"no_repeat": 1, "min_length": 2}, "it would repeat an n-gram"),
        (DecodingRequest([5], prefix=(2, 2)), {"beam": 1}, "the prefix has another token"),
        (DecodingRequest([5], forbidden=(recognise((1,)),)), {}, "it would complete a forbidden phrase"),
        (DecodingRequest([5], required=((3, 3, 3),)), {}, "a required phrase is missing"),
        (DecodingRequest([5]), {"max_length": 2, "min_length": 1}, "only END is allowed at the maximum length"),
    ],
)
def test_the_tree_has_the_constraint_that_forbids_a_candidate(
    request_: DecodingRequest, options: dict[str, int], reason: str
) -> None:
    stepper = TableStepper(VOCABULARY, seed=2)
    settings = SearchSettings.parse({"beam": 2, "max_length": 5} | options, "test")
    (best,) = search_tokens(stepper, [request_], settings, trace=True)
    tree = tree_of(best)
    forbidden = [e for e in tree if e.outcome.startswith("forbidden")]
    assert reason in {e.outcome.removeprefix("forbidden: ") for e in forbidden}
    assert not any(e.parent == f.node for f in forbidden for e in tree)
    # Of each hypothesis, only the best candidates are shown, as many as the search looks at without constraints.
    assert max(Counter(e.parent for e in forbidden).values()) <= 2 * settings.beam
    for e in forbidden:  # with the log-probability of the model
        tokens = tokens_before(tree, e)
        assert float(stepper.after((5, stepper.bos, *tokens))[e.token]) == pytest.approx(e.log_prob)


def test_a_phrase_that_overlaps_itself_is_matched() -> None:
    state = RequiredPhrases.of([((2, 2, 3),)], 1)
    assert state is not None
    matched = []
    for token in (2, 2, 2, 3, 1):
        state = state.extend(np.zeros((1, 1), np.int64), np.array([[token]]))
        matched.append(state.matched_tokens().item())
    assert matched == [1, 2, 2, 3, 3]
    assert not state.missing.any()


def test_no_sources_give_no_results() -> None:
    assert search_tokens(TableStepper(VOCABULARY), [], SearchSettings()) == []


def test_length_normalisers_follow_their_formulas() -> None:
    length = 7.0
    assert SearchSettings(length_penalty="average", alpha=2.0).length_normaliser(length) == 49
    assert abs(SearchSettings(length_penalty="wu", alpha=0.6).length_normaliser(length) - 2**0.6) < 1e-12
    assert SearchSettings(length_penalty="none").length_normaliser(length) == 1


def test_top_p_keeps_the_nucleus() -> None:
    stepper = TableStepper(4)
    stepper.after = lambda row: torch.tensor([0.1, 0.5, 0.25, 0.15]).log()  # type: ignore[method-assign]
    for share, kept in ((0.4, {1}), (0.6, {1, 2}), (0.8, {1, 2, 3})):
        drawn = search_tokens(stepper, [[3]], SearchSettings(top_p=share, n_best=200, max_length=2))[0]
        assert {(one.tokens or [EOS])[0] for one in drawn} == kept


def test_a_prefix_longer_than_the_positions_of_the_model_is_rejected() -> None:
    stepper = TableStepper(VOCABULARY)
    stepper.max_length = 4  # type: ignore[assignment]
    with pytest.raises(UserError, match="is too long"):
        search_tokens(stepper, [DecodingRequest([1], prefix=(1, 2, 3, 1))], SearchSettings(beam=2))


class Diverged(TableStepper):
    """Returns NaN for one sentence after its first token."""

    def after(self, row: tuple[int, ...]) -> torch.Tensor:
        log_probs = super().after(row)
        return torch.full_like(log_probs, torch.nan) if row[0] == 7 and len(row) > 2 else log_probs


@pytest.mark.parametrize(
    "options",
    [
        SearchSettings(beam=1),
        SearchSettings(beam=3),
        SearchSettings(beam=3, stop="first"),
        SearchSettings(beam=4, groups=2),
        SearchSettings(beam=3, coverage=0.3),
        SearchSettings(temperature=1.0, min_length=2),
        SearchSettings(top_p=0.9, min_length=2),
    ],
    ids=str,
)
def test_nan_scores_are_rejected(options: SearchSettings) -> None:
    with pytest.raises(UserError, match="the model returns NaN scores"):
        search_tokens(Diverged(VOCABULARY), SOURCES, options)
    assert len(search_tokens(Diverged(VOCABULARY), [[5, 6], [8, 9, 10]], options)) == 2, (
        "other sentences are not affected"
    )


@pytest.mark.parametrize("beam", [1, 3])
def test_nan_scores_are_rejected_in_the_step_in_which_they_occur(beam: int) -> None:
    stepper = Diverged(50)  # END is not among the candidates
    with pytest.raises(UserError, match="the model returns NaN scores"):
        search_tokens(stepper, [[7]], SearchSettings(beam=beam, min_length=2))
    assert stepper.steps == 2


def test_nan_scores_are_rejected_with_required_phrases() -> None:
    with pytest.raises(UserError, match="the model returns NaN scores"):
        search_tokens(Diverged(VOCABULARY), [DecodingRequest((7,), required=((2,),))], SearchSettings(beam=3))


# Helpers


@settings(max_examples=30)
@given(rows=st.integers(1, 5), vocabulary=st.integers(1, 6_000), k=st.integers(1, 10), seed=st.integers(0, 99))
def test_top_k_agrees_with_torch(rows: int, vocabulary: int, k: int, seed: int) -> None:
    k = min(k, vocabulary)
    x = torch.rand(rows, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values, indices = top_k(x, k)
    expected = x.topk(k, -1)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)


CHUNKED = 40 * TOP_K_CHUNK


@pytest.mark.parametrize("index", [0, TOP_K_CHUNK - 1, CHUNKED - 1, CHUNKED, CHUNKED + 6])
def test_top_k_finds_values_at_the_borders_of_chunks(index: int) -> None:
    x = torch.rand(2, CHUNKED + 7, generator=torch.Generator().manual_seed(0))
    x[1, index] = 2
    assert top_k(x, 4)[1][1, 0] == index


@pytest.mark.parametrize(
    ("changes", "source_length", "limit"),
    [
        ({}, 20, 60),
        ({"max_ratio": 1.15, "max_extra": 0}, 20, 23),  # 22.999999999999996 in floating point
        ({"max_ratio": 1.5, "max_extra": 1}, 3, 5),
        ({"max_ratio": 0.1, "max_extra": 0}, 3, 1),
        ({"max_ratio": 0.1, "max_extra": 0, "min_length": 4}, 3, 5),
        ({"max_length": 7}, 100, 7),
    ],
)
def test_length_limit_follows_from_the_source_length(changes: dict[str, float], source_length: int, limit: int) -> None:
    assert SearchSettings.parse(changes, "search").max_target_length(source_length) == limit
