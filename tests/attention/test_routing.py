from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.core import Full, attend
from regard.attention.masks import Mask, Packed, Padded
from regard.attention.multi_head import Attention
from regard.attention.routing import MAX_FORMULA_MEMBERS, Routing, RoutingPath
from regard.ops.cluster_sort import sort_by_cluster

H, D, C = 2, 8, 3
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def tensors(batch: int, T: int, S: int | None = None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(T)
    shape = [(batch, H, n, D) for n in (T, S or T, S or T)]
    return tuple(torch.randn(*s, generator=source, dtype=torch.float64).to(dtype) for s in shape)


def routing(clusters: int = C, path: RoutingPath = "auto", **changes: float) -> Routing:
    torch.manual_seed(0)
    kind = Routing(H, D, clusters, path=path, **changes).double().eval()  # type: ignore[arg-type]
    kind.balance_bias.copy_(0.1 * torch.randn(kind.balance_bias.shape))
    return kind


def nearest(kind: Routing, x: Tensor, side: int) -> list[list[list[int]]]:
    """The cluster of each token, by plain loops: the largest cosine plus the cluster's lead."""
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


def by_hand(kind: Routing, q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool) -> Tensor:
    of_query, of_key = nearest(kind, q, 0), nearest(kind, k, 1)
    shift = k.shape[2] - q.shape[2]
    context = torch.zeros_like(q)
    for b in range(len(q)):
        for h in range(H):
            for t in range(q.shape[2]):
                seen = [s for s in range(lengths[b]) if of_key[b][h][s] == of_query[b][h][t]]
                seen = [s for s in seen if not causal or s <= t + shift]
                if seen:
                    scores = (k[b, h, seen] @ q[b, h, t]) / D**0.5
                    context[b, h, t] = scores.softmax(0) @ v[b, h, seen]
    return context


@pytest.mark.parametrize("path", ["reference", "dense", "clusters", "auto"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("length", [1, 2, 21])
def test_a_query_looks_at_the_keys_of_its_cluster(length: int, causal: bool, path: RoutingPath) -> None:
    q, k, v = tensors(2, length)
    kind = routing(path=path)
    expected = by_hand(kind, q, k, v, [length] * 2, causal)
    torch.testing.assert_close(kind(q, k, v, Mask(causal=causal)), expected, **EXACT)


@pytest.fixture(params=[0, MAX_FORMULA_MEMBERS], ids=["fused", "by the formula"])
def of_small_clusters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a CPU attends within them."""
    monkeypatch.setattr("regard.attention.routing.MAX_FORMULA_MEMBERS", request.param)


@pytest.mark.usefixtures("of_small_clusters")
@pytest.mark.parametrize("path", ["reference", "dense", "clusters"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_padding_is_never_routed(causal: bool, path: RoutingPath) -> None:
    lengths = [11, 0, 4]
    q, k, v = tensors(3, 11)
    kind, layout = routing(path=path), Padded.of(lengths)
    got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    expected = by_hand(kind, q, k, v, lengths, causal)
    torch.testing.assert_close(got, expected * layout.real()[:, None, :, None], **EXACT)
    assert (got[1] == 0).all()
    torch.testing.assert_close(kind(q, k, v, Mask(keys=layout, causal=causal)), got, **EXACT)
    if causal:  # as a decoder says it, where causality hides the padding already
        torch.testing.assert_close(kind(q, k, v, Mask.between(layout, layout, causal=True)), got, **EXACT)


@pytest.mark.parametrize("path", ["reference", "dense", "clusters", "auto"])
def test_one_cluster_is_full_attention(path: RoutingPath) -> None:
    q, k, v = tensors(2, 14)
    layout = Padded.of([14, 3])
    for mask in (Mask(), Mask(causal=True), Mask(keys=layout)):
        full = Full()(q, k, v, mask)
        expected = full if mask.keys is None else full * layout.real()[:, None, :, None]  # padding is never routed
        torch.testing.assert_close(routing(1, path)(q, k, v, mask), expected, **EXACT)


@pytest.mark.parametrize("path", ["reference", "clusters"])
@pytest.mark.parametrize("T", [1, 4])
def test_queries_at_the_end_of_a_cache_are_as_without_one(T: int, path: RoutingPath) -> None:
    q, k, v = tensors(2, 20)
    kind = routing(path=path)
    whole = kind(q, k, v, Mask(causal=True))
    torch.testing.assert_close(kind(q[:, :, -T:], k, v, Mask(causal=True)), whole[:, :, -T:], **EXACT)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_packed_sequences_are_each_as_if_alone(causal: bool) -> None:
    lengths = [5, 1, 30, 2]
    q, k, v = tensors(1, sum(lengths))
    layout, kind = Packed.of(lengths), routing(path="clusters")
    got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    parts = zip(*(x.split(lengths, 2) for x in (q, k, v)), strict=True)
    torch.testing.assert_close(got, torch.cat([kind(*part, Mask(causal=causal)) for part in parts], 2), **EXACT)


@pytest.mark.usefixtures("of_small_clusters")
def test_the_gradients_of_clusters_are_right() -> None:
    kind, layout = routing(path="clusters"), Padded.of([9, 0, 4])
    inputs = tuple(x.requires_grad_() for x in tensors(3, 9))
    for mask in (Mask(queries=layout, keys=layout), Mask(causal=True)):
        assert torch.autograd.gradcheck(lambda *qkv, m=mask: kind(*qkv, m), inputs, fast_mode=True)


def test_long_rows_are_attended_to_by_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Counts what a device would be asked to do: every operator but those that only look at a tensor anew."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = operator._schema.returns
        self.number += not any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        return operator(*args, **(kwargs or {}))


def test_clusters_take_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences cost what it takes to launch it all: a third less than the 73 and 24 that it once was."""
    monkeypatch.setattr("regard.attention.routing.MAX_FORMULA_MEMBERS", 0)  # as a GPU does it
    torch.manual_seed(0)
    q, k, v = (x.requires_grad_() for x in tensors(1, 128, dtype=torch.float32))
    kind = Routing(H, D, 11, path="clusters").eval()
    with torch.no_grad(), Launches() as forward:
        kind(q, k, v, Mask(causal=True))
    context = kind(q, k, v, Mask(causal=True))
    with Launches() as backward:
        torch.autograd.grad(context, (q, k, v), torch.ones_like(context))
    assert forward.number <= 48
    assert backward.number <= 8


def test_sorting_by_clusters_takes_few_launches() -> None:
    """As a GPU does it, between finding the clusters and attending within them: once this took 53."""
    kind, mask = routing(), Mask(causal=True)
    q, k, _ = tensors(1, 128)
    of_query, of_key = kind.assign(q, k, mask)
    for learning, most in ((False, 17), (True, 21)):
        with Launches() as launches:
            places = mask.positions(128, 128, q.device)
            sort_by_cluster(of_query, of_key, C + 2, *places, mask.reach, learning)
        assert launches.number <= most


def test_dropout_drops_weights() -> None:
    torch.manual_seed(0)
    q, k, v = tensors(1, 64)
    kind = routing(path="clusters")
    assert not torch.allclose(kind(q, k, v, Mask(), 0.3), kind(q, k, v, Mask()))


# What is learned


def crowded(batch: int, T: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries and keys round few directions of very different popularity, as those of a real model are."""
    source = torch.Generator().manual_seed(seed)
    poles = torch.randn(5, D, generator=torch.Generator().manual_seed(9)) + 1
    popular = torch.tensor([0.6, 0.2, 0.1, 0.06, 0.04])
    chosen = [torch.multinomial(popular, batch * H * T, replacement=True, generator=source) for _ in range(2)]
    q, k = (poles[c].view(batch, H, T, D) + 0.3 * torch.randn(batch, H, T, D, generator=source) for c in chosen)
    return q, k


def shares(kind: Routing, q: Tensor, k: Tensor) -> Tensor:
    """The share of each cluster, (2, H, C)."""
    sides = kind.assign(q, k, Mask())
    return torch.stack([F.one_hot(s, kind.clusters).float().mean((0, 2)) for s in sides])


def test_training_brings_clusters_to_equal_size() -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, 8)
    unseen = crowded(8, 100, seed=77)
    before = shares(kind, *unseen).max().item()
    for step in range(300):
        q, k = crowded(4, 100, seed=step)
        kind(q, k, q, Mask())
    after = shares(kind, *unseen)
    assert before > 0.5
    assert after.max().item() < 2 / 8
    assert (after > 0.3 / 8).float().mean() > 0.8


def test_training_moves_centroids_to_their_members() -> None:
    def fit(kind: Routing) -> float:
        """How close tokens stand to the centroid of their cluster: their mean cosine."""
        q, k = crowded(8, 100, seed=77)
        cosines = []
        for x, cluster in zip((q, k), kind.assign(q, k, Mask()), strict=True):
            mine = kind.centroids[torch.arange(H)[:, None], cluster]
            cosines.append(torch.cosine_similarity(x, mine, -1).mean())
        return float(torch.stack(cosines).mean())

    torch.manual_seed(0)
    kind = Routing(H, D, 8)
    before = fit(kind)
    for step in range(300):
        q, k = crowded(4, 100, seed=step)
        kind(q, k, q, Mask())
    assert fit(kind) > max(0.9, before + 0.1)
    torch.testing.assert_close(kind.centroids.norm(dim=-1), torch.ones(H, 8))


def test_one_step_is_a_moving_average_of_the_members_directions() -> None:
    kind = routing(1, decay=0.9).train()
    q, k, v = tensors(2, 6)
    before = kind.centroids.clone()
    kind(q, k, v, Mask())
    members = F.normalize(torch.cat((q, k), 2), dim=-1).sum((0, 2))
    expected = F.normalize(0.9 * before[:, 0] + 0.1 * F.normalize(members, dim=-1), dim=-1)
    torch.testing.assert_close(kind.centroids[:, 0], expected)


def test_a_long_sequence_is_taken_in_pieces_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(2, 23)
    results = []
    for piece in (4096, 5):
        monkeypatch.setattr("regard.attention.routing.CHUNK", piece)
        kind = routing(path="clusters").train()
        results.append((kind(q, k, v, Mask(causal=True)), kind.centroids, kind.balance_bias))
    for whole, pieces in zip(*results, strict=True):
        torch.testing.assert_close(pieces, whole, **EXACT)


def test_padding_teaches_nothing() -> None:
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
    for centroids, leads in learned[1:]:
        torch.testing.assert_close(centroids, learned[0][0])
        torch.testing.assert_close(leads, learned[0][1])


def test_a_batch_of_padding_alone_teaches_nothing() -> None:
    kind, layout = routing().train(), Padded.of([0, 0], 6)
    before = [buffer.clone() for buffer in (kind.centroids, kind.balance_bias)]
    kind(*tensors(2, 6), Mask(queries=layout, keys=layout))
    assert torch.equal(kind.centroids, before[0])
    assert torch.equal(kind.balance_bias, before[1])


def test_numbers_that_are_none_teach_nothing_that_lasts() -> None:
    kind = routing().train()
    q, k, v = tensors(2, 9)
    q[0, 0, 3] = float("nan")
    kind(q, k, v, Mask())
    assert all(buffer.isfinite().all() for buffer in kind.buffers())


def test_outside_training_nothing_is_learned() -> None:
    kind = routing()
    before = {name: buffer.clone() for name, buffer in kind.named_buffers()}
    kind(*tensors(2, 9), Mask())
    assert before.keys() == {"centroids", "balance_bias"}
    for name, buffer in kind.named_buffers():
        assert torch.equal(buffer, before[name])


def test_what_was_learned_is_part_of_a_models_state() -> None:
    module = Attention(16, 2, kind=Routing(2, 8, 4))
    assert {"kind.centroids", "kind.balance_bias"} <= module.state_dict().keys()
