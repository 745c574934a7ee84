"""Tests of attention over tokens that are sorted by cluster, against a mask over clusters."""

import pytest
import torch
from torch import Tensor

from regard.attention.routing import Routing
from regard.masks import Mask, Packed, Padded
from regard.ops import dispatch
from regard.ops.cluster_sort import nearest_centroid

pytestmark = [
    pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="needs Triton"),
    pytest.mark.usefixtures("interpreted"),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
H, D, C = 2, 16, 4


def rows(length: int, batch: int = 2) -> list[Tensor]:
    source = torch.Generator().manual_seed(length)
    tensors = [torch.randn(batch, H, length, D, generator=source) for _ in range(3)]
    return [x.to(DEVICE).requires_grad_() for x in tensors]


def run(kind: Routing, mask: Mask, inputs: list[Tensor]) -> list[Tensor]:
    context = kind(*inputs, mask)
    weights = torch.linspace(-1, 1, context.numel(), device=DEVICE).view(context.shape)
    return [context, *torch.autograd.grad(context, inputs, weights)]


def masks() -> dict[str, tuple[Mask, int]]:
    padded = Padded.of([70, 41], device=DEVICE)
    packed = Packed.of([40, 1, 0, 29], device=DEVICE)
    return {
        "no layout": (Mask(), 2),
        "causal": (Mask(causal=True), 2),
        "window": (Mask(window=(20, 5)), 2),
        "padded": (Mask(queries=padded, keys=padded, causal=True), 2),
        "packed": (Mask(queries=packed, keys=packed, causal=True), 1),
    }


@pytest.mark.parametrize("name", masks())
def test_sorted_clusters_agree_with_a_mask_over_clusters(name: str) -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, C).to(DEVICE).eval()
    mask, batch = masks()[name]
    inputs = rows(70, batch)
    got, expected = [], []
    for implementation, results in (("sorted", got), ("reference", expected)):
        kind.implementation = implementation  # type: ignore[assignment]
        results += run(kind, mask, inputs)
    if name == "padded":  # padding has no defined context
        got[0], expected[0] = (x.masked_fill(~mask.queries.real()[:, None, :, None], 0) for x in (got[0], expected[0]))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=5e-6, rtol=1e-5)


def test_queries_are_aligned_to_the_end_of_a_cache() -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, C, implementation="sorted").to(DEVICE).eval()
    q, k, v = rows(50)
    expected = kind(q, k, v, Mask(causal=True))
    torch.testing.assert_close(kind(q[:, :, -7:], k, v, Mask(causal=True)), expected[:, :, -7:])


def test_training_updates_centroids_as_on_other_paths() -> None:
    moved = []
    for implementation in ("sorted", "clusters"):
        torch.manual_seed(0)
        kind = Routing(H, D, C, implementation=implementation).to(DEVICE)  # type: ignore[arg-type]
        kind(*rows(40), Mask(causal=True))
        moved.append(kind.centroids)
    torch.testing.assert_close(moved[0], moved[1])


@pytest.mark.parametrize("centroids", [3, 65])
def test_nearest_centroid_has_the_largest_similarity(centroids: int) -> None:
    source = torch.Generator().manual_seed(centroids)
    x = torch.randn(2, H, 70, D, generator=source).to(DEVICE)
    directions = torch.nn.functional.normalize(torch.randn(H, centroids, D, generator=source), dim=-1).to(DEVICE)
    bias = 0.1 * torch.randn(H, centroids, generator=source).to(DEVICE)
    similarity = torch.cosine_similarity(x[:, :, :, None].double(), directions[:, None].double(), -1) + bias[:, None]
    nearest = nearest_centroid(x, directions, bias)
    assert nearest.dtype == torch.int32
    best = similarity.amax(-1)
    torch.testing.assert_close(similarity.gather(-1, nearest[..., None].long())[..., 0], best, atol=1e-5, rtol=0)
    assert (nearest == similarity.argmax(-1)).float().mean().item() > 0.99


def test_routing_compiles_to_one_graph() -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, C, implementation="sorted").to(DEVICE).eval()
    mask, batch = masks()["packed"]
    inputs = rows(70, batch)
    compiled = torch.compile(lambda q, k, v: kind(q, k, v, mask), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), kind(*inputs, mask))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
def test_sorting_on_gpu_does_not_synchronise() -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, C).to(DEVICE).eval()
    inputs = [x.detach().bfloat16().repeat(1, 1, 10, 1).requires_grad_() for x in rows(70, 1)]
    causal = Mask(causal=True)
    run(kind, causal, inputs)  # the first call compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(kind, causal, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("width", [3, 20])
def test_values_may_have_another_width_than_keys(width: int) -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, C, implementation="sorted").to(DEVICE).eval()
    q, k, _ = rows(30)
    v = torch.randn(2, H, 30, width, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    context = kind(q, k, v, Mask(causal=True))
    torch.testing.assert_close(context, kind.weights(q, k, Mask(causal=True)) @ v, atol=5e-6, rtol=1e-5)


def test_unsupported_inputs_are_rejected() -> None:
    kind = Routing(H, D, C, implementation="sorted").to(DEVICE).eval()
    inputs = rows(5)
    with pytest.raises(ValueError, match="without a dense mask"):
        kind(*inputs, Mask(allowed=torch.ones(5, 5, dtype=torch.bool, device=DEVICE)))
    with pytest.raises(ValueError, match="supports heads of up to 128 features"):
        kind(*inputs[:2], torch.zeros(2, H, 5, 129, device=DEVICE), Mask())
