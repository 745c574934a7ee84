"""Batches, validation and data of translation tasks."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.text.readers import Pair, read_parallel
from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.evaluation.metrics import bleu, chrf
from regard.models.transformer import Transformer
from regard.training.objectives.teacher_forcing import TeacherForcing, TeacherForcingSettings
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.state import DataPosition, DataShard
from regard.training.tasks.translation.data import open_corpora, train_tokenizers
from regard.training.tasks.translation.recipe import DataSettings, TokenizerSettings
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import collate
from tests.conftest import build_task

Build = Callable[..., TranslationTask]
CPU = torch.device("cpu")
PLAIN_LOSS = TeacherForcing(TeacherForcingSettings(), label_smoothing=0.0)
ROWS = np.array([3, 100, 200, 7, 400, 99])


def gradients(task: TranslationTask, *batches: object) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the mean loss over some batches and its gradients."""
    task.model.zero_grad()
    total = sum(task.loss(batch, 1).total for batch in batches) / sum(task.count(batch) for batch in batches)
    total.backward()
    return total.item(), {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    assert all(gradient.abs().max() > 0 for name, gradient in one.items() if "qkv.bias" not in name)
    for name, gradient in one.items():
        assert torch.allclose(gradient, other[name], rtol=0, atol=tolerance), name


# Batches and losses


@pytest.mark.parametrize("packed", [False, True])
def test_inputs_start_with_bos_and_labels_end_with_eos(packed: bool, build: Build) -> None:
    task = build()
    vocabulary = task.translator.vocabularies.target
    batch = collate(task.train_tokens, ROWS, packed, 0)
    lengths = task.train_tokens.target.lengths[ROWS] - 1
    inputs = batch.inputs[0] if packed else batch.inputs.flatten()[batch.real]
    sentences = zip(ROWS, inputs.split(lengths.tolist()), batch.labels.split(lengths.tolist()), strict=True)
    for row, tokens, label in sentences:
        assert tokens[0] == vocabulary.BOS
        assert label[-1] == vocabulary.EOS
        assert torch.equal(tokens[1:], label[:-1])
        assert label[:-1].tolist() == task.train_tokens.target.take(np.array([row])).tokens[1:-1].tolist()
    assert task.count(batch) == lengths.sum() == task.loss(batch, 1).count
    assert batch.sentences == len(ROWS)


def test_padded_and_packed_batches_have_the_same_loss_and_gradients(build: Build) -> None:
    task = build()
    padded, packed = collate(task.train_tokens, ROWS, False, 0), collate(task.train_tokens, ROWS, True, 0)
    assert padded.source.shape[0] == len(ROWS)
    assert packed.source.shape[0] == 1
    assert 0 in padded.source
    assert 0 not in packed.source
    loss, gradient = gradients(task, padded)
    other_loss, other_gradient = gradients(task, packed)
    assert loss == pytest.approx(other_loss, abs=1e-5)
    assert_same(gradient, other_gradient, 1e-5)


def test_batches_that_do_not_fit_into_memory_are_split_down_to_one_sentence(build: Build) -> None:
    task = build()
    batch = task.collate(task.train_tokens, ROWS)
    assert task.describe(batch) == f"6 sentences of up to {batch.longest} tokens"
    assert task.advise(batch) == f"batch.tokens={batch.padded_tokens // 2}"
    halves = task.split(batch)
    assert halves is not None
    assert [half.rows.tolist() for half in halves] == [ROWS[:3].tolist(), ROWS[3:].tolist()]
    single = (task.split(halves[0]) or ())[0]
    assert task.split(single) is None
    assert task.describe(single) == f"a sentence of {single.longest} tokens"
    assert task.advise(single) == f"data.max_length={single.longest // 2}, or a smaller model"


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_two_batches_equal_those_of_one_large_batch(packed: bool, build: Build) -> None:
    task = build()
    loss, gradient = gradients(task, *(collate(task.train_tokens, rows, packed, 0) for rows in (ROWS[:2], ROWS[2:])))
    whole_loss, whole_gradient = gradients(task, collate(task.train_tokens, ROWS, packed, 0))
    assert loss == pytest.approx(whole_loss, abs=1e-6)
    assert_same(gradient, whole_gradient, 1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_adds_a_uniform_distribution(smoothing: float, build: Build) -> None:
    task = build(optim__label_smoothing=smoothing)
    batch = collate(task.train_tokens, ROWS, False, 0)
    logits = task.model(batch.source, batch.inputs, batch.source_layout, batch.target_layout).flatten(0, 1)[batch.real]
    log_probs = logits.log_softmax(-1)
    cross_entropy = -log_probs.gather(1, batch.labels[:, None])[:, 0]
    expected = ((1 - smoothing) * cross_entropy + smoothing * -log_probs.mean(-1)).sum()
    assert task.loss(batch, 1).total.item() == pytest.approx(expected.item(), rel=1e-6)


def test_each_epoch_contains_every_sentence_once_in_another_order(build: Build) -> None:
    task = build()
    batches = task.batches(DataPosition(), DataShard())
    epochs = []
    for _ in range(2):
        remaining, seen = len(task.train_tokens), []
        while remaining > 0:
            batch = next(batches).item
            remaining -= batch.sentences
            seen.extend(tuple(row) for row in batch.source.tolist())
        assert remaining == 0
        epochs.append([tuple(token for token in row if token) for row in seen])
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_batches_resume_from_any_position(build: Build) -> None:
    task = build(batch__tokens=512)
    plan = next(i for i, planned in enumerate(task._plan_from(DataPosition())) if planned.after.epoch)
    batches = task.batches(DataPosition(), DataShard())
    batches_after = [next(batches) for _ in range(2 * plan + 2)]
    assert [item.after for item in batches_after[plan - 1 : plan + 1]] == [DataPosition(0, plan), DataPosition(1, 1)]
    for used in (0, 1, plan - 1, plan, plan + 1, 2 * plan):  # around the end of an epoch
        position = batches_after[used - 1].after if used else DataPosition()
        again = task.batches(position, DataShard())
        for expected in batches_after[used : used + 2]:
            found = next(again)
            assert found.after == expected.after
            assert torch.equal(found.item.source, expected.item.source)
            assert torch.equal(found.item.labels, expected.item.labels)
        again.close()


@pytest.mark.parametrize("world", [2, 3])
def test_shards_of_all_processes_partition_the_batches(build: Build, world: int) -> None:
    task = build(batch__tokens=512)
    all_batches = task.batches(DataPosition(), DataShard())
    shards = [task.batches(DataPosition(), DataShard(rank, world)) for rank in range(world)]
    for _ in range(6):
        group = [next(all_batches) for _ in range(world)]
        for expected, shard in zip(group, shards, strict=True):
            own = next(shard)
            assert torch.equal(own.item.labels, expected.item.labels)
            assert own.after == group[-1].after


def test_validation_draws_no_random_numbers(build: Build) -> None:
    task = build(model__dropout=0.3, search__temperature=1.0, search__beam=None)
    task.model.train()
    before = torch.get_rng_state()
    task.validate(task.model)
    assert torch.equal(torch.get_rng_state(), before)


def test_layout_follows_the_recipe(build: Build) -> None:
    assert not build().packed
    assert build(batch__layout="packed").packed


# Validation


def test_validation_returns_loss_without_smoothing_and_bleu(build: Build) -> None:
    task = build(optim__label_smoothing=0.4)
    scores = task.validate(task.model).scores
    batch = collate(task.valid_tokens, np.arange(len(task.valid_tokens)), False, 0)
    expected = PLAIN_LOSS.loss(task.model, batch, 0)
    assert scores["loss"] == pytest.approx(expected.total.item() / expected.count, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    pairs = task.valid_pairs[:20]
    translations = task.translator([pair.source for pair in pairs], beam=1)
    assert scores["bleu"] == bleu(translations, [pair.target for pair in pairs], "zh").value == scores["score"]


@pytest.mark.parametrize("monitor", ["loss", "bleu", "chrf"])
def test_monitored_score_selects_the_best_model(monitor: str, build: Build) -> None:
    task = build(training__monitor=monitor)
    scores = task.validate(task.model).scores
    assert scores["score"] == (-scores["loss"] if monitor == "loss" else scores[monitor])
    pairs = task.valid_pairs[:20]
    translations = task.translator([pair.source for pair in pairs], beam=1)
    assert scores["chrf"] == chrf(translations, [pair.target for pair in pairs]).value


@pytest.mark.parametrize("monitor", ["bleu", "chrf"])
def test_monitoring_bleu_or_chrf_needs_translations(monitor: str, build: Build) -> None:
    with pytest.raises(UserError, match=f"monitor {monitor} needs translations"):
        build(training__monitor=monitor, training__valid_sentences=0)


def test_loss_selects_the_best_model_without_translations(build: Build) -> None:
    task = build(training__valid_sentences=0)
    scores = task.validate(task.model).scores
    assert "bleu" not in scores
    assert scores["score"] == -scores["loss"]


def test_validation_uses_the_given_model(build: Build) -> None:
    task = build()
    other = Transformer(task.model.config)
    assert task.validate(other).scores["loss"] != task.validate(task.model).scores["loss"]


def test_validation_sentences_beyond_the_learned_positions_are_skipped(
    toy: Path, tmp_path: Path, make_recipe: Callable[..., Recipe]
) -> None:
    (tmp_path / "v.en").write_text("I love apples\n" + "I love apples " * 40 + "\n")
    (tmp_path / "v.zh").write_text("我喜欢苹果\n" + "我喜欢苹果" * 40 + "\n", encoding="utf-8")
    files = {"data__valid_source": str(tmp_path / "v.en"), "data__valid_target": str(tmp_path / "v.zh")}
    recipe = make_recipe(model__positions="learned", model__max_length=64, **files)
    task = build_task(recipe, CPU, Progress(1))
    assert task.valid_pairs == [Pair("I love apples", "我喜欢苹果")]
    assert np.isfinite(PLAIN_LOSS.loss(task.model, collate(task.valid_tokens, np.array([0]), False, 0), 0).total.item())


# Corpora and vocabularies


def test_training_and_held_out_pairs_partition_the_corpus(toy: Path) -> None:
    data = DataSettings(source=toy / "train.en", target=toy / "train.zh", hold_out=40)
    corpora = open_corpora(data, seed=3)
    train, all_pairs = list(corpora.pairs()), list(read_parallel(toy / "train.en", toy / "train.zh"))
    assert len(corpora.valid) == 40
    assert not set(train) & set(corpora.valid)
    assert sorted(train + corpora.valid) == sorted(all_pairs)
    assert train == [pair for pair in all_pairs if pair not in corpora.valid]
    assert list(corpora.pairs()) == train  # can be read repeatedly


def test_seed_selects_the_held_out_pairs(toy: Path) -> None:
    data = DataSettings(source=toy / "train.en", target=toy / "train.zh", hold_out=40)
    assert open_corpora(data, 3).valid == open_corpora(data, 3).valid != open_corpora(data, 4).valid


def test_at_most_a_tenth_is_held_out(toy: Path) -> None:
    data = DataSettings(source=toy / "train.en", target=toy / "train.zh", hold_out=1000)
    assert len(open_corpora(data, 1).valid) == 50


def test_nothing_is_held_out_if_validation_files_are_given(toy: Path) -> None:
    files = {"source": toy / "train.en", "target": toy / "train.zh"}
    corpora = open_corpora(DataSettings(**files, valid_source=toy / "train.en", valid_target=toy / "train.zh"), 1)
    assert list(corpora.pairs()) == corpora.valid
    assert len(corpora.valid) == 500


def test_joint_vocabulary_covers_both_sides_and_separate_ones_one_each() -> None:
    pairs = [Pair("abc abc", "xyz xyz")] * 3
    joint = train_tokenizers(lambda: pairs, TokenizerSettings(size=300))
    assert joint.source is joint.target
    separate = train_tokenizers(lambda: pairs, TokenizerSettings(size=300, joint=False))

    def knows(tokenizer: Tokenizer, text: str) -> bool:
        return min(tokenizer.encode(text)) >= len(Tokenizer.FIXED_TOKENS)

    assert knows(joint.source, "abc xyz")
    assert knows(separate.source, "abc")
    assert knows(separate.target, "xyz")
    assert not knows(separate.source, "xyz")
    assert not knows(separate.target, "abc")


def test_skipped_pairs_are_counted_and_reported(
    tmp_path: Path, make_recipe: Callable[..., Recipe], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["I love apples"] * 30 + ["", "I love apples " * 30] + ["I love apples"] * 30
    (tmp_path / "a.en").write_text("\n".join(lines) + "\n")
    (tmp_path / "a.zh").write_text("\n".join("我喜欢苹果" for _ in lines) + "\n", encoding="utf-8")
    files = {"data__source": str(tmp_path / "a.en"), "data__target": str(tmp_path / "a.zh")}
    valid = {"data__valid_source": str(tmp_path / "a.en"), "data__valid_target": str(tmp_path / "a.zh")}
    task = build_task(make_recipe(**files, **valid, data__max_length=20), CPU, Progress(1))
    output = capsys.readouterr().out
    assert len(task.train_tokens) == 60
    assert "skipped: 1 pair with an empty side" in output
    assert "skipped: 1 pair with over 20 tokens" in output


# Prefetching


def test_closing_the_batches_stops_the_background_thread(build: Build) -> None:
    task, before = build(), set(threading.enumerate())
    batches = task.batches(DataPosition(), DataShard())
    next(batches)
    assert len(set(threading.enumerate()) - before) == 1
    batches.close()
    assert set(threading.enumerate()) <= before


def test_errors_in_the_background_thread_are_raised(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task = build()

    def fail(*arguments: object, **options: object) -> None:
        raise UserError("the disk has failed")

    monkeypatch.setattr(task, "collate", fail)
    with pytest.raises(UserError, match="the disk has failed"):
        next(task.batches(DataPosition(), DataShard()))
