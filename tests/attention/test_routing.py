from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.core import attend
from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.attention.routing import MAX_FORMULA_MEMBERS, Routing, RoutingImplementation
from regard.masks import Mask, Packed, Padded
from regard.ops.cluster_sort import sort_by_cluster

H, D, C = 2, 8, 3
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def tensors(batch: int, T: int, S: int | None = None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(T)
    shape = [(batch, H, n, D) for n in (T, S or T, S or T)]
    return tuple(torch.randn(*s, generator=source, dtype=torch.float64).to(dtype) for s in shape)


def routing(clusters: int = C, implementation: RoutingImplementation = "auto", **changes: float) -> Routing:
    torch.manual_seed(0)
    kind = Routing(H, D, clusters, implementation=implementation, **changes).double().eval()  # type: ignore[arg-type]
    kind.balance_bias.copy_(0.1 * torch.randn(kind.balance_bias.shape))
    return kind


def nearest(kind: Routing, x: Tensor, side: int) -> list[list[list[int]]]:
    """Return the cluster of each token in plain loops: the largest cosine similarity plus bias."""
    return [
        [
            [
                max(
                    range(kind.clusters),
                    key=lambda c: float(
                        torch.cosine_similarity(x[b, h, t], kind.centroids[h, c], 0) + kind.balance_bias[side, h, c]
                    ),
                )
                for t in range(x.shape[2])
            ]
            for h in range(H)
        ]
        for b in range(len(x))
    ]


def attend_by_loops(kind: Routing, q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool) -> Tensor:
    query_clusters, key_clusters = nearest(kind, q, 0), nearest(kind, k, 1)
    shift = k.shape[2] - q.shape[2]
    context = torch.zeros_like(q)
    for b in range(len(q)):
        for h in range(H):
            for t in range(q.shape[2]):
                keys = [s for s in range(lengths[b]) if key_clusters[b][h][s] == query_clusters[b][h][t]]
                keys = [s for s in keys if not causal or s <= t + shift]
                if keys:
                    scores = (k[b, h, keys] @ q[b, h, t]) / D**0.5
                    context[b, h, t] = scores.softmax(0) @ v[b, h, keys]
    return context


@pytest.mark.parametrize("implementation", ["reference", "dense", "clusters", "auto"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("length", [1, 2, 21])
def test_queries_attend_to_the_keys_of_their_cluster(
    length: int, causal: bool, implementation: RoutingImplementation
) -> None:
    q, k, v = tensors(2, length)
    kind = routing(implementation=implementation)
    expected = attend_by_loops(kind, q, k, v, [length] * 2, causal)
    torch.testing.assert_close(kind(q, k, v, Mask(causal=causal)), expected, **EXACT)


@pytest.fixture(params=[0, MAX_FORMULA_MEMBERS], ids=["sdpa", "reference"])
def path_within_clusters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with either implementation that attends within clusters on CPU."""
    monkeypatch.setattr("regard.attention.routing.MAX_FORMULA_MEMBERS", request.param)


@pytest.mark.usefixtures("path_within_clusters")
@pytest.mark.parametrize("implementation", ["reference", "dense", "clusters"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_padding_belongs_to_no_cluster(causal: bool, implementation: RoutingImplementation) -> None:
    lengths = [11, 0, 4]
    q, k, v = tensors(3, 11)
    kind, layout = routing(implementation=implementation), Padded.of(lengths)
    got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    expected = attend_by_loops(kind, q, k, v, lengths, causal)
    torch.testing.assert_close(got, expected * layout.real()[:, None, :, None], **EXACT)
    assert (got[1] == 0).all()
    torch.testing.assert_close(kind(q, k, v, Mask(keys=layout, causal=causal)), got, **EXACT)
    if causal:  # the mask of a padded decoder has no layout of keys
        torch.testing.assert_close(kind(q, k, v, Mask.between(layout, layout, causal=True)), got, **EXACT)


@pytest.mark.parametrize("implementation", ["reference", "dense", "clusters", "auto"])
def test_one_cluster_is_full_attention(implementation: RoutingImplementation) -> None:
    q, k, v = tensors(2, 14)
    layout = Padded.of([14, 3])
    for mask in (Mask(), Mask(causal=True), Mask(keys=layout)):
        full = Full()(q, k, v, mask)
        expected = full if mask.keys is None else full * layout.real()[:, None, :, None]  # padding has no cluster
        torch.testing.assert_close(routing(1, implementation)(q, k, v, mask), expected, **EXACT)


@pytest.mark.parametrize("implementation", ["reference", "clusters"])
@pytest.mark.parametrize("T", [1, 4])
def test_queries_are_aligned_to_the_end_of_a_cache(T: int, implementation: RoutingImplementation) -> None:
    q, k, v = tensors(2, 20)
    kind = routing(implementation=implementation)
    expected = kind(q, k, v, Mask(causal=True))
    torch.testing.assert_close(kind(q[:, :, -T:], k, v, Mask(causal=True)), expected[:, :, -T:], **EXACT)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_packed_sequences_are_independent(causal: bool) -> None:
    lengths = [5, 1, 30, 2]
    q, k, v = tensors(1, sum(lengths))
    layout, kind = Packed.of(lengths), routing(implementation="clusters")
    got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    parts = zip(*(x.split(lengths, 2) for x in (q, k, v)), strict=True)
    torch.testing.assert_close(got, torch.cat([kind(*part, Mask(causal=causal)) for part in parts], 2), **EXACT)


@pytest.mark.usefixtures("path_within_clusters")
def test_gradients_within_clusters_are_correct() -> None:
    kind, layout = routing(implementation="clusters"), Padded.of([9, 0, 4])
    inputs = tuple(x.requires_grad_() for x in tensors(3, 9))
    for mask in (Mask(queries=layout, keys=layout), Mask(causal=True)):
        assert torch.autograd.gradcheck(lambda *qkv, m=mask: kind(*qkv, m), inputs, fast_mode=True)


def test_long_rows_compute_only_scores_within_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    scores: list[int] = []

    def spy(q: Tensor, k: Tensor, *others: object, **more: object) -> Tensor:
        scores.append(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        return attend(q, k, *others, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("regard.attention.routing.attend", spy)
    q, k, v = tensors(1, 600, dtype=torch.float32)
    kind = Routing(H, D, 16)
    for _ in range(100):
        kind(q, k, v, Mask())
    scores.clear()
    kind.eval()(q, k, v, Mask())
    assert scores[0] < H * 600 * 600 / 4


class Launches(TorchDispatchMode):
    """Count the operators that would launch a kernel, that is, all except views."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = operator._schema.returns
        self.number += not any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        return operator(*args, **(kwargs or {}))


def test_attention_within_clusters_needs_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of short sequences is determined by the number of launches."""
    monkeypatch.setattr("regard.attention.routing.MAX_FORMULA_MEMBERS", 0)  # as on a GPU
    torch.manual_seed(0)
    q, k, v = (x.requires_grad_() for x in tensors(1, 128, dtype=torch.float32))
    kind = Routing(H, D, 11, implementation="clusters").eval()
    with torch.no_grad(), Launches() as forward:
        kind(q, k, v, Mask(causal=True))
    context = kind(q, k, v, Mask(causal=True))
    with Launches() as backward:
        torch.autograd.grad(context, (q, k, v), torch.ones_like(context))
    assert forward.number <= 48
    assert backward.number <= 8


def test_sorting_by_cluster_needs_few_launches() -> None:
    kind, mask = routing(), Mask(causal=True)
    q, k, _ = tensors(1, 128)
    clusters = kind.assign(q, k, mask)
    for backward, limit in ((False, 17), (True, 21)):
        with Launches() as launches:
            positions = mask.positions(128, 128, q.device)
            sort_by_cluster(*clusters, C + 2, *positions, mask.reach, backward)
        assert launches.number <= limit


def test_dropout_changes_the_context() -> None:
    torch.manual_seed(0)
    q, k, v = tensors(1, 64)
    kind = routing(implementation="clusters")
    assert not torch.allclose(kind(q, k, v, Mask(), 0.3), kind(q, k, v, Mask()))


# Learning clusters


def unbalanced(batch: int, T: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return queries and keys around few directions of very different frequency, as in a trained model."""
    source = torch.Generator().manual_seed(seed)
    directions = torch.randn(5, D, generator=torch.Generator().manual_seed(9)) + 1
    frequencies = torch.tensor([0.6, 0.2, 0.1, 0.06, 0.04])
    chosen = [torch.multinomial(frequencies, batch * H * T, replacement=True, generator=source) for _ in range(2)]
    q, k = (directions[c].view(batch, H, T, D) + 0.3 * torch.randn(batch, H, T, D, generator=source) for c in chosen)
    return q, k


def cluster_shares(kind: Routing, q: Tensor, k: Tensor) -> Tensor:
    """Return the share of tokens in each cluster, (2, H, C)."""
    sides = kind.assign(q, k, Mask())
    return torch.stack([F.one_hot(s, kind.clusters).float().mean((0, 2)) for s in sides])


def test_training_balances_the_clusters() -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, 8)
    held_out = unbalanced(8, 100, seed=77)
    before = cluster_shares(kind, *held_out).max().item()
    for step in range(300):
        q, k = unbalanced(4, 100, seed=step)
        kind(q, k, q, Mask())
    after = cluster_shares(kind, *held_out)
    assert before > 0.5
    assert after.max().item() < 2 / 8
    assert (after > 0.3 / 8).float().mean() > 0.8


def test_training_moves_centroids_to_their_members() -> None:
    def mean_similarity(kind: Routing) -> float:
        q, k = unbalanced(8, 100, seed=77)
        cosines = []
        for x, cluster in zip((q, k), kind.assign(q, k, Mask()), strict=True):
            centroids = kind.centroids[torch.arange(H)[:, None], cluster]
            cosines.append(torch.cosine_similarity(x, centroids, -1).mean())
        return float(torch.stack(cosines).mean())

    torch.manual_seed(0)
    kind = Routing(H, D, 8)
    before = mean_similarity(kind)
    for step in range(300):
        q, k = unbalanced(4, 100, seed=step)
        kind(q, k, q, Mask())
    assert mean_similarity(kind) > max(0.9, before + 0.1)
    torch.testing.assert_close(kind.centroids.norm(dim=-1), torch.ones(H, 8))


def test_centroids_are_a_moving_average_of_member_directions() -> None:
    kind = routing(1, decay=0.9).train()
    q, k, v = tensors(2, 6)
    before = kind.centroids.clone()
    kind(q, k, v, Mask())
    members = F.normalize(torch.cat((q, k), 2), dim=-1).sum((0, 2))
    expected = F.normalize(0.9 * before[:, 0] + 0.1 * F.normalize(members, dim=-1), dim=-1)
    torch.testing.assert_close(kind.centroids[:, 0], expected)


def test_chunked_clustering_of_long_sequences_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(2, 23)
    results = []
    for chunk in (4096, 5):
        monkeypatch.setattr("regard.attention.routing.CHUNK", chunk)
        kind = routing(implementation="clusters").train()
        results.append((kind(q, k, v, Mask(causal=True)), kind.centroids, kind.balance_bias))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, **EXACT)


def test_padding_does_not_update_the_clusters() -> None:
    lengths = [6, 2]
    q, k, v = tensors(2, 6)
    noisy = [x.clone() for x in (q, k, v)]
    for x in noisy:
        x[1, :, 2:] = 100
    learned = []
    layout = Padded.of(lengths)
    both, causal = Mask(queries=layout, keys=layout), Mask.between(layout, layout, causal=True)
    for mask in (both, causal, Mask(keys=layout), Mask(keys=layout, causal=True)):
        for inputs in ((q, k, v), noisy):
            kind = routing().train()
            kind(*inputs, mask)
            learned.append((kind.centroids.clone(), kind.balance_bias.clone()))
    for centroids, balance_bias in learned[1:]:
        torch.testing.assert_close(centroids, learned[0][0])
        torch.testing.assert_close(balance_bias, learned[0][1])


def test_batch_of_padding_does_not_update_the_clusters() -> None:
    kind, layout = routing().train(), Padded.of([0, 0], 6)
    before = [buffer.clone() for buffer in (kind.centroids, kind.balance_bias)]
    kind(*tensors(2, 6), Mask(queries=layout, keys=layout))
    assert torch.equal(kind.centroids, before[0])
    assert torch.equal(kind.balance_bias, before[1])


def test_nan_inputs_do_not_spoil_the_clusters() -> None:
    kind = routing().train()
    q, k, v = tensors(2, 9)
    q[0, 0, 3] = float("nan")
    kind(q, k, v, Mask())
    assert all(buffer.isfinite().all() for buffer in kind.buffers())


def test_clusters_are_not_updated_in_evaluation_mode() -> None:
    kind = routing()
    before = {name: buffer.clone() for name, buffer in kind.named_buffers()}
    kind(*tensors(2, 9), Mask())
    assert before.keys() == {"centroids", "balance_bias"}
    for name, buffer in kind.named_buffers():
        assert torch.equal(buffer, before[name])


def test_clusters_are_part_of_the_state_dict() -> None:
    module = Attention(16, 2, kind=Routing(2, 8, 4))
    assert {"kind.centroids", "kind.balance_bias"} <= module.state_dict().keys()
