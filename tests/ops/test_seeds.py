"""Seeds of one draw are as good as seeds that are drawn one by one."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.ops import seeds
from regard.ops.seeds import draw_seed, drawing_at_once
from regard.training.cuda_graph import Recorder

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")


class Draws(TorchFunctionMode):
    """Counts the draws while it is entered."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.randint
        return function(*args, **kwargs or {})


def draw(count: int) -> list[int]:
    return [int(draw_seed(DEVICE)) for _ in range(count)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(seeds, "BLOCK", 8)
    yield


def test_a_pass_draws_once_for_all_that_it_drops() -> None:
    with Draws() as counted, drawing_at_once():
        found = draw(100)
    assert counted.count == 1
    assert len(set(found)) == 100, "a seed that comes twice drops the same twice"
    assert min(found) >= 0
    assert max(found) > 2**30


def test_whoever_asks_for_more_than_a_block_gets_others(small_blocks: None) -> None:
    with Draws() as counted, drawing_at_once():
        assert len(set(draw(20))) == 20
    assert counted.count == 3


def test_the_state_of_the_generator_tells_what_a_pass_will_draw() -> None:
    torch.manual_seed(3)
    with drawing_at_once():
        draw(5)
    state = torch.get_rng_state() if DEVICE.type == "cpu" else torch.cuda.get_rng_state(DEVICE)
    with drawing_at_once():
        going_on = draw(5)
    torch.manual_seed(3)
    with drawing_at_once():
        assert draw(1) != going_on[:1], "nothing is left over from the pass before"
    if DEVICE.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, DEVICE)
    with drawing_at_once():
        assert draw(5) == going_on


def test_how_much_a_pass_asks_for_does_not_change_what_the_next_one_gets() -> None:
    found = []
    for asked in (1, 7):
        torch.manual_seed(3)
        with drawing_at_once():
            draw(asked)
        with drawing_at_once():
            found.append(draw(3))
    assert found[0] == found[1]


def test_other_threads_and_passes_within_a_pass_have_seeds_of_their_own() -> None:
    torch.manual_seed(3)
    with drawing_at_once():
        alone = draw(4)
    torch.manual_seed(3)
    with drawing_at_once():
        found = draw(2)
        with Draws() as counted, drawing_at_once():
            assert not set(draw(3)) & set(alone)
        assert counted.count == 1
        blocks: list[Any] = []
        thread = threading.Thread(target=lambda: blocks.append(seeds._in_use.blocks))
        thread.start()
        thread.join()
        assert blocks == [None]
        assert found + draw(2) == alone


def test_an_error_ends_a_pass() -> None:
    with pytest.raises(KeyError), drawing_at_once():
        draw(1)
        raise KeyError
    with Draws() as counted:
        draw(2)
    assert counted.count == 2


def test_seeds_lie_where_kernels_that_were_compiled_for_one_take_another() -> None:
    with drawing_at_once():
        kept = [draw_seed(DEVICE) for _ in range(9)]
    assert {seed.data_ptr() % 16 for seed in kept} == {0}


def test_a_compiled_pass_draws_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with Draws() as counted, drawing_at_once():
        draw(3)
    assert counted.count == 3


@on_gpu
def test_a_recording_draws_what_plain_passes_would_have_drawn() -> None:
    def act(given: Any) -> Tensor:
        with drawing_at_once():
            return torch.cat([draw_seed(DEVICE) for _ in range(3)])

    recorder: Recorder[Any, Tensor] = Recorder(act, DEVICE)
    given = [torch.zeros(1, device=DEVICE)]
    while recorder.repeat(given) is None:
        pass
    torch.manual_seed(3)
    replayed = [recorder.repeat(given).clone() for _ in range(3)]  # type: ignore[union-attr]
    torch.manual_seed(3)
    plain = [act(given) for _ in range(3)]
    assert all(torch.equal(one, other) for one, other in zip(replayed, plain, strict=True))
    assert len({tuple(drawn.tolist()) for drawn in plain}) == 3
