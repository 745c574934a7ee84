"""Several processes under torchrun, over gloo: the steps of one process, checkpoints that outlive them, restarts."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.distributed import HashStore
from torch.distributed.run import get_args_parser
from typer.main import get_command

from regard.cli import app
from regard.errors import UserError
from regard.models.transformer import Transformer, TransformerConfig
from regard.runtime import Interrupted
from regard.training.distributed import AgreedError, OwnError, Processes, check_accumulation, joined, reporting_once
from regard.training.parallelism import _parameters_only
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.rendezvous import meet
from regard.training.run import run_recipe
from regard.training.state import TrainingState
from tests.conftest import ENVIRONMENT, SMALL, settings_of, small_recipe
from tests.forks import Forked
from tests.images import TINY

STEPS = 12
LATE = 9  # the step of a validation, which takes long enough for a signal to arrive meanwhile
SHORT = {
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "optim.accumulate": 6,
    "batch.tokens": 64,
    "objective.guided_attention": {"steps": 20},  # for a loss of several parts
    "training.steps": STEPS,
    "training.average": 0.4,
    "training.log_every": 1,
    "training.validate_every": LATE,
    "training.valid_sentences": 30,
    "training.checkpoint_every": 2,
    "training.keep_checkpoints": 9,
}
REGARD = ("-m", "regard")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]


def torchrun(processes: int, *words: object, restarts: int = 0) -> subprocess.Popen[str]:
    """Starts processes that find each other over the loopback device."""
    return subprocess.Popen(
        [*TORCHRUN, "--nproc-per-node", str(processes), "--max-restarts", str(restarts), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def words(toy: Path, out: Path, **changes: object) -> list[str]:
    settings = settings_of(SMALL | SHORT | {key.replace("__", "."): value for key, value in changes.items()})
    files = ["--src", str(toy / "train.en"), "--tgt", str(toy / "train.zh")]
    return ["train", *files, "--out", str(out), *settings]


def finish(process: subprocess.Popen[str]) -> str:
    """All that a run said, once it has ended well."""
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def together(processes: int, folder: Path, train: list[str]) -> str:
    """What the first of some processes said that found each other without torchrun, by the same environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    world = address | {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    started = [Forked(train, folder, world | rank) for rank in ranks]
    said = [process.communicate(timeout=120) for process in started]
    for process in started:
        process.end()
    assert [process.returncode for process in started] == [0] * processes, said
    return said[0][0]


def wait_for_step(process: subprocess.Popen[str], step: int) -> str:
    """What a run said up to a step."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(f"step {step}/"):
            return said
    raise AssertionError(said)


def worker(process: subprocess.Popen[str], rank: int) -> int:
    """The id of one of the processes that torchrun has started."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"no process {rank}")


def run_alone(toy: Path, out: Path, further: dict[str, Any] | None = None) -> Path:
    changes: dict[str, Any] = {key.replace(".", "__"): value for key, value in (SHORT | (further or {})).items()}
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", **changes), out)
    return out


@pytest.fixture(scope="module")
def alone(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process, without dropout. Not to be written to."""
    return run_alone(toy, tmp_path_factory.mktemp("alone") / "run")


def curve(out: Path) -> list[float]:
    """The loss of every step; what it is made of; then of the validations, the last of which is of averaged weights."""
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [entry for entry in entries if "loss" in entry]
    assert [entry["step"] for entry in steps] == list(range(1, STEPS + 1)), "each step once"
    figures = [entry[name] for name in ("loss", "cross_entropy", "guide", "tokens") for entry in steps]
    return figures + [entry["validation"]["loss"] for entry in entries if "validation" in entry]


def weights(out: Path, which: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(out / which / "model.safetensors")


def assert_same_course(out: Path, alone: Path) -> None:
    assert curve(out) == pytest.approx(curve(alone), abs=1e-4)
    assert curve(alone)[STEPS - 1] < curve(alone)[0] - 1, "it learns something"
    mine, theirs = weights(out, "last"), weights(alone, "last")
    assert mine.keys() == theirs.keys()
    for name in mine:
        if "qkv.bias" not in name:  # that of the keys changes nothing, so its gradient is nothing but rounding
            assert torch.allclose(mine[name], theirs[name], atol=1e-3), name


def go_back(run: Path, step: int, to: Path) -> Path:
    """A copy of a run as if it had been killed after the checkpoint of a step."""
    shutil.copytree(run, to)
    (to / "checkpoints" / "last").write_text(f"step-{step:08d}\n")
    return to


# Under torchrun


def test_two_processes_take_the_steps_of_one_and_asked_to_stop_save_the_same_step(
    toy: Path, tmp_path: Path, alone: Path
) -> None:
    process = torchrun(2, *REGARD, *words(toy, tmp_path / "run", training__checkpoint_every=100))
    said = wait_for_step(process, LATE)
    process.send_signal(signal.SIGTERM)
    said += process.communicate(timeout=60)[0]
    assert process.returncode != 0
    (step,) = re.findall(r"^saved at step (\d+); the same command goes on from there$", said, re.M)
    assert LATE <= int(step) < STEPS
    assert said.count("regard: interrupted\n") == said.count(f"step {LATE}/{STEPS}") == 1, "one of them speaks"
    assert "Warning" not in said
    (place,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert {path.name for path in place.iterdir()} == {"state.safetensors", "state.json", "manifest.json"}
    run_alone(toy, tmp_path / "run")  # one process does the rest
    assert_same_course(tmp_path / "run", alone)


def test_a_sharded_run_loses_a_process_takes_the_same_steps_and_goes_on_with_one_and_with_three(
    toy: Path, tmp_path: Path, alone: Path
) -> None:
    process = torchrun(2, *REGARD, *words(toy, tmp_path / "two", training__sharding="fsdp"), restarts=1)
    wait_for_step(process, 5)
    os.kill(worker(process, 1), signal.SIGKILL)
    assert "\nresuming from step " in finish(process)
    assert_same_course(tmp_path / "two", alone)
    files = {path.name for path in (tmp_path / "two" / "checkpoints" / "step-00000006").iterdir()}
    assert len([name for name in files if name.endswith(".safetensors")]) == 2
    assert {name for name in files if not name.endswith(".safetensors")} == {"state.json", "manifest.json"}

    one, three = (go_back(tmp_path / "two", 6, tmp_path / name) for name in ("one", "three"))
    run_alone(toy, one)
    assert_same_course(one, alone)
    said = together(3, tmp_path, words(toy, three, training__sharding="fsdp"))
    assert "resuming from step 6\nthere were 2 processes and there are 3" in said
    assert_same_course(three, alone)


def test_a_killed_process_is_started_again_and_the_run_ends_in_the_same_weights(toy: Path, tmp_path: Path) -> None:
    lively = {"model__dropout": 0.2}
    together(2, tmp_path, words(toy, tmp_path / "whole", **lively))
    process = torchrun(2, *REGARD, *words(toy, tmp_path / "killed", **lively), restarts=1)
    wait_for_step(process, 5)
    os.kill(worker(process, 1), signal.SIGKILL)
    said = finish(process)
    (step,) = re.findall(r"resuming from step (\d+)", said)
    assert 4 <= int(step) < STEPS
    assert "Traceback" not in said
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    for which in ("best", "last"):
        mine, theirs = weights(tmp_path / "killed", which), weights(tmp_path / "whole", which)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_two_processes_take_the_steps_of_one_on_images_too(painted: Path, tmp_path: Path) -> None:
    settings = TINY | {"optim.accumulate": 2, "augmentation.preset": "strong", "training.steps": 6, "training.ema": 0.5}
    run_recipe(Recipe.load(None, [], settings | {"data.images": str(painted)}), tmp_path / "alone")
    together(2, tmp_path, ["train", "--data", str(painted), "--out", str(tmp_path / "two"), *settings_of(settings)])
    mine, theirs = weights(tmp_path / "two", "last"), weights(tmp_path / "alone", "last")
    for name in theirs:
        if "qkv.bias" not in name:
            assert torch.allclose(mine[name], theirs[name], atol=1e-4), name


def test_processes_agree(tmp_path: Path) -> None:
    process = torchrun(2, Path(__file__).with_name("voices.py"), tmp_path)
    said, _ = process.communicate(timeout=60)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (first.pop("in_turn"), second.pop("in_turn")) == ("led", "followed, mark True")
    assert first == second
    assert first == {
        "sum": [3, 1],
        "largest": 3,
        "gather": [{"rank": 0}, {"rank": 1}],
        "on_main": "by 0",
        "on_main_fails": "refused by 0",
        "agreeing": ["from 0", "from 1"],
    }
    assert said.count("regard: the second process finds no data\n") == 1, "said once, whoever found it"
    assert "exitcode: 1" in said or "exitcode: 2" in said


# What is written about it


def written_commands() -> list[list[str]]:
    text = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    return [shlex.split(line[1:]) for line in re.findall(r"^\$ .*torchrun.*$", text, re.M)]


@pytest.mark.parametrize("written", written_commands(), ids=lambda written: " ".join(written)[:60])
def test_every_torchrun_command_that_is_written_down_is_one(written: list[str]) -> None:
    launch = get_args_parser().parse_args(written[written.index("torchrun") + 1 :])
    assert (launch.module, launch.training_script) == (True, "regard")
    command, *options = launch.training_script_args
    get_command(app).commands[command].make_context(command, list(options))  # type: ignore[attr-defined]
    (accumulate,) = [int(word.partition("=")[2]) for word in options if word.startswith("optim.accumulate=")]
    check_accumulation(accumulate, int(launch.nnodes.partition(":")[0]) * int(launch.nproc_per_node))


# Within this process


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, as if torchrun had started it alone."""
    here = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_what_one_process_saved_can_be_divided(
    sharding: str, toy: Path, tmp_path: Path, alone: Path, started: None
) -> None:
    run_alone(toy, go_back(alone, 10, tmp_path / "run"), {"training.sharding": sharding})
    assert_same_course(tmp_path / "run", alone)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_on_a_gpu_with_nccl_the_steps_are_the_same(sharding: str, toy: Path, tmp_path: Path, started: None) -> None:
    gpu = {"training.device": "cuda", "training.precision": "float32", "batch.layout": "padded"}
    whole = run_alone(toy, tmp_path / "whole", gpu | {"training.sharding": sharding})
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name)
    plain = run_alone(toy, tmp_path / "plain", gpu)
    assert curve(whole) == pytest.approx(curve(plain), abs=1e-3)
    run_alone(toy, go_back(whole, 6, tmp_path / "back"), gpu)
    assert curve(tmp_path / "back") == pytest.approx(curve(plain), abs=1e-3)


def test_a_part_that_finds_no_room_ends_the_run_and_the_checkpoint_before_it_stays(
    toy: Path, tmp_path: Path, started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> bytes:
        raise OSError(28, "No space left on device")

    def fill(progress: Progress, step: int, report: dict[str, float]) -> None:
        if step == 4:
            monkeypatch.setattr("safetensors.torch.save", full)

    out = tmp_path / "run"
    monkeypatch.setattr(Progress, "step", fill)
    with pytest.raises(UserError, match=r"step-00000004: could not be written \(No space left on device\)") as refused:
        run_alone(toy, out, {"training.sharding": "fsdp"})
    assert str(refused.value).endswith("the same command resumes from step-00000002")
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"last", "step-00000002"}


@pytest.mark.parametrize(
    ("accumulate", "world", "advice"),
    [(6, 4, "optim.accumulate=4 or 8"), (1, 2, "optim.accumulate=2"), (7, 3, "optim.accumulate=6 or 9")],
)
def test_a_step_that_cannot_be_divided_is_refused(accumulate: int, world: int, advice: str) -> None:
    with pytest.raises(UserError, match=rf"a step of {accumulate} batch.* among {world} processes; set {advice} "):
        check_accumulation(accumulate, world)


@pytest.mark.parametrize(("accumulate", "world"), [(1, 1), (6, 3), (8, 8)])
def test_a_step_that_can_be_divided_is_not(accumulate: int, world: int) -> None:
    check_accumulation(accumulate, world)


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:1", "write cuda, not cuda:1"), ("cuda", "this machine has 2 GPUs for 3 processes; .*--nproc-per-node 2")],
)
def test_devices_that_processes_cannot_have_are_refused(
    device: str, message: str, started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr("regard.training.distributed.choose_device", torch.device)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(UserError, match=message), joined(device):
        pass


@pytest.mark.parametrize(
    ("error", "code"), [(AgreedError("all"), 2), (UserError("bad recipe"), 2), (Interrupted(signal.SIGTERM), 143)]
)
def test_what_ends_all_processes_is_left_to_one_of_them(
    error: BaseException, code: int, started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error)), reporting_once():
        raise error
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(SystemExit) as quiet, reporting_once():
        raise error
    assert quiet.value.code == code


def test_what_one_process_alone_has_found_it_says_itself(started: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(OwnError, match="file is gone"), reporting_once(), joined("cpu"):
        raise UserError("file is gone")
    torch.distributed.destroy_process_group()


def test_a_lost_companion_is_no_traceback(started: None) -> None:
    with pytest.raises(SystemExit, match="process 0 stops because another process has ended"), reporting_once():
        raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer.")
    with pytest.raises(RuntimeError, match="a bug"), reporting_once():
        raise RuntimeError("a bug")


def test_processes_meet_although_the_store_remembers_those_that_were_killed() -> None:
    store = HashStore()
    for start in ("first", "second", "third"):
        met: dict[int, Any] = {}

        def join(rank: int, met: dict[int, Any] = met) -> None:
            met[rank] = meet(store, rank, 3)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in (2, 0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not met[1].check(["address"]), "nothing of an earlier start is found"
        met[0].set("address", start)
        assert met[1].get("address") == met[2].get("address") == start.encode()


def test_a_process_that_never_comes_is_not_waited_for_without_end() -> None:
    with pytest.raises(TimeoutError, match="process 1 has not come"):
        meet(HashStore(), 0, 2, patience=0.05)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_bare_modules_hold_the_same_weights_under_the_same_names(tie: str) -> None:
    model = Transformer(TransformerConfig.tiny(11, width=8, heads=2, hidden=8, tie=tie))
    bare = _parameters_only(model, {})
    theirs, mine = dict(model.named_parameters()), dict(bare.named_parameters())
    assert list(mine) == list(theirs)
    assert all(mine[name] is theirs[name] for name in theirs)
    assert bare.state_dict().keys() == model.state_dict().keys()
    assert not list(bare.buffers())


def drawn(rank: int, step: int = 0, seed: int = 1) -> float:
    """The next random number of a process that has just been told apart."""
    torch.manual_seed(5)
    model = nn.Linear(1, 1)
    state = TrainingState(model, torch.optim.AdamW(model.parameters()), processes=Processes(rank, 3))
    state.step = step
    state.draw_apart(seed)
    return torch.rand(1).item()


def test_processes_draw_random_numbers_of_their_own() -> None:
    different = [drawn(0), drawn(1), drawn(2), drawn(1, step=4), drawn(1, seed=2)]
    assert len(set(different)) == len(different)
    assert drawn(2) == different[2]
    torch.manual_seed(5)
    nn.Linear(1, 1)
    assert torch.rand(1).item() == different[0], "one process alone draws what it always drew"
