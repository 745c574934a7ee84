"""What is gathered and added up at once is what would have been added up one by one."""

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models import transformer
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import embedding_gradients as returns
from regard.ops.dispatch import INSTALLED
from regard.ops.embedding import embed
from regard.ops.embedding_backward import add_up_rows
from regard.ops.embedding_gradients import gathering
from regard.ops.seeds import drawing_at_once

pytestmark = pytest.mark.skipif(not INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
WORDS, WIDTH = 19, 24


@pytest.fixture
def table() -> nn.Parameter:
    return nn.Parameter(torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(0)).to(DEVICE))


def tokens(count: int) -> Tensor:
    source = torch.Generator().manual_seed(count)
    return torch.randint(WORDS - 4, (1, count), generator=source).to(DEVICE) // 2


def read(table: Tensor, counts: list[int], dropout: float = 0.0, output: bool = True) -> Tensor:
    """A loss of so many readers, one after the other, and of an output that shares their table."""
    torch.manual_seed(5)
    with drawing_at_once():
        total = sum(embed(tokens(count), table, 3.0, dropout=dropout).sin().sum() for count in counts)
    assert isinstance(total, Tensor)
    return total + (F.linear(torch.ones(2, WIDTH, device=DEVICE), table).cos().sum() if output else 0)


def one_by_one(table: nn.Parameter, *given: Any, passes: int = 1) -> Tensor:
    table.grad = None
    for _ in range(passes):
        read(table, *given).backward()
    assert table.grad is not None
    found, table.grad = table.grad, None
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("counts", [[40], [40, 70, 5], [40, 0]])
def test_readers_of_one_table_leave_it_the_same_gradient(
    table: nn.Parameter, counts: list[int], output: bool, dropout: float
) -> None:
    expected = one_by_one(table, counts, dropout, output)
    with gathering():
        read(table, counts, dropout, output).backward()
    torch.testing.assert_close(table.grad, expected, atol=1e-4, rtol=1e-5)


def test_gradients_of_several_passes_add_up(table: nn.Parameter) -> None:
    expected = one_by_one(table, [30, 20], passes=3)
    for _ in range(3):
        with gathering():
            read(table, [30, 20]).backward()
    torch.testing.assert_close(table.grad, expected, atol=1e-4, rtol=1e-5)


def test_tables_and_dropouts_that_differ_are_kept_apart(table: nn.Parameter) -> None:
    other = nn.Parameter(torch.randn_like(table))
    expected = [one_by_one(table, [30], 0.0), one_by_one(other, [20], 0.0), one_by_one(table, [9], 0.5, False)]
    with gathering():
        (read(table, [30]) + read(other, [20])).backward()
        read(table, [9], 0.5, False).backward()
    torch.testing.assert_close(table.grad, expected[0] + expected[2], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(other.grad, expected[1], atol=1e-4, rtol=1e-5)


def test_what_comes_back_late_is_added_up_at_once(table: nn.Parameter) -> None:
    expected = one_by_one(table, [30, 20])
    with gathering():
        loss = read(table, [30, 20])
    assert table.grad is None
    loss.backward()
    torch.testing.assert_close(table.grad, expected, atol=1e-4, rtol=1e-5)


def test_what_comes_back_in_another_thread_is_gathered_too(table: nn.Parameter) -> None:
    """A GPU's way back is in a thread of its own, which knows nothing of what this one has entered."""
    expected = one_by_one(table, [30, 20], 0.3)
    with gathering():
        thread = threading.Thread(target=read(table, [30, 20], 0.3).backward)
        thread.start()
        thread.join()
        gathered = returns._in_use.gathering
        assert gathered is not None and len(gathered.returned) == 2
    torch.testing.assert_close(table.grad, expected, atol=1e-4, rtol=1e-5)


def test_an_error_leaves_nothing_for_the_next_pass(table: nn.Parameter) -> None:
    expected = one_by_one(table, [30, 20])
    with pytest.raises(KeyError), gathering():
        read(table, [7], 0.0, False).backward()
        raise KeyError
    assert table.grad is None
    with gathering():
        read(table, [30, 20]).backward()
    torch.testing.assert_close(table.grad, expected, atol=1e-4, rtol=1e-5)


def test_a_table_that_was_made_of_another_has_its_gradient_at_once(table: nn.Parameter) -> None:
    read(2 * table, [30, 20]).backward()
    expected, table.grad = table.grad, None
    with gathering():
        read(2 * table, [30, 20]).backward()
    torch.testing.assert_close(table.grad, expected)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_a_model_learns_the_same(monkeypatch: pytest.MonkeyPatch, tie: str) -> None:
    monkeypatch.setattr(transformer, "joins", lambda *given: torch.is_grad_enabled())
    added: list[int] = []

    def count(readings: Any, *given: Any) -> Tensor:
        added.append(len(readings))
        return add_up_rows(readings, *given)

    monkeypatch.setattr("regard.ops.embedding_gradients.add_up_rows", count)
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": 2, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = Transformer(TransformerConfig.base(WORDS, tie=tie, **sizes)).to(DEVICE)
    found = []
    for together in (False, True):
        model.zero_grad()
        if together:
            with gathering():
                model(tokens(8), tokens(9)).square().mean().backward()
        else:
            model(tokens(8), tokens(9)).square().mean().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert added == ([2] if tie == "all" else [1, 1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@on_gpu
def test_a_recording_gathers_as_a_plain_pass_does() -> None:
    big = nn.Parameter(torch.randn(2000, 512, device=DEVICE))
    given = [torch.randint(2000, (1, 3000), device=DEVICE) for _ in range(2)]

    def act() -> Tensor:
        big.grad = None
        with gathering():
            sum(embed(one, big, 3.0).sin().sum() for one in given).backward()  # type: ignore[union-attr]
        assert big.grad is not None
        return big.grad

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        plain = [act().clone() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        recorded = act()
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(recorded, one) for one in plain)
