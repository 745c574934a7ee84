"""Search finds the same hypotheses and scores as `generate` of transformers with the same weights."""

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.marian import as_transformer, marian_inputs, random_marian, random_sources
from regard.decoding.autoregressive import TransformerStepper, search_tokens
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.masks import Padded

VOCAB, LIMIT = 80, 60
SOURCES = random_sources(240, VOCAB, shortest=1, longest=12)
MARIAN = random_marian(VOCAB, width=32, heads=4, layers=2, hidden=64)
OURS = as_transformer(MARIAN)
END = MARIAN.config.eos_token_id


def ours(beam: int, alpha: float, stop: str) -> list[TokenHypothesis]:
    settings = SearchSettings(beam=beam, alpha=alpha, stop=stop, max_ratio=0, max_extra=LIMIT)
    return [best[0] for best in search_tokens(TransformerStepper(OURS), SOURCES, settings)]


def theirs(beam: int, alpha: float, early_stopping: bool | str) -> list[tuple[list[int], float]]:
    """Return the best hypotheses, up to END if they have one, and their scores."""
    options = {"early_stopping": early_stopping, "length_penalty": alpha} if beam > 1 else {}
    found = MARIAN.generate(
        **marian_inputs(SOURCES, MARIAN.config),
        num_beams=beam,
        do_sample=False,
        max_new_tokens=LIMIT,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    tokens = [_cut_at_end(row) for row in found.sequences[:, 1:].tolist()]  # without the start token
    if beam > 1:
        return list(zip(tokens, found.sequences_scores.tolist(), strict=True))
    log_probs = MARIAN.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    scores = [sum(row[: len(one)]) / len(one) ** alpha for row, one in zip(log_probs.tolist(), tokens, strict=True)]
    return list(zip(tokens, scores, strict=True))


def _cut_at_end(row: list[int]) -> list[int]:
    return row[: row.index(END) + 1] if END in row else row


def test_logits_are_equal() -> None:
    inputs = marian_inputs(SOURCES, MARIAN.config)
    target = torch.randint(0, VOCAB, (len(SOURCES), 9), generator=torch.Generator().manual_seed(1))
    lengths = inputs["attention_mask"].sum(1)
    logits = OURS(inputs["input_ids"], target, Padded.of(lengths))
    torch.testing.assert_close(logits, MARIAN(**inputs, decoder_input_ids=target).logits, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
@pytest.mark.parametrize(
    ("beam", "stop", "early_stopping"), [(1, "exact", False), (4, "exact", "never"), (4, "first", True)]
)
def test_best_hypothesis_is_equal(beam: int, stop: str, early_stopping: bool | str, alpha: float) -> None:
    compared = 0
    lengths = set()
    for found, (tokens, score) in zip(ours(beam, alpha, stop), theirs(beam, alpha, early_stopping), strict=True):
        if tokens[-1] != END:
            # At the length limit, our search appends END with its score, while generate cuts the hypothesis.
            continue
        compared += 1
        lengths.add(len(tokens))
        assert [*found.tokens, END] == tokens
        assert found.score == pytest.approx(score, abs=1e-4)
    assert compared >= 200
    assert len(lengths) >= 10


def test_default_stopping_rule_of_generate_is_exact_without_length_penalty() -> None:
    for found, (tokens, score) in zip(ours(4, 0.0, "exact"), theirs(4, 0.0, False), strict=True):
        if tokens[-1] == END:
            assert [*found.tokens, END] == tokens
            assert found.score == pytest.approx(score, abs=1e-4)


def test_exact_stopping_finds_better_hypotheses_than_the_default_rule_of_generate() -> None:
    """Its bound uses the current length of unfinished hypotheses, which can still improve with a length penalty."""
    pairs = list(zip(ours(4, 1.0, "exact"), theirs(4, 1.0, False), strict=True))
    gaps = [found.score - score for found, (tokens, score) in pairs if tokens[-1] == END]
    assert min(gaps) > -1e-4
    assert max(gaps) > 1e-3
