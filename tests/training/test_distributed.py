"""Distributed training under torchrun with gloo: agreement with one process, checkpoints, restarts."""

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
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.distributed import HashStore
from torch.distributed.run import get_args_parser
from torch.optim.optimizer import register_optimizer_step_post_hook
from typer.main import get_command

from regard.cli import app
from regard.console import Interrupted
from regard.errors import UserError
from regard.models.transformer import Transformer, TransformerConfig
from regard.training import cuda_graph
from regard.training.distributed import (
    AgreedError,
    LocalError,
    Processes,
    check_accumulation,
    fresh_store,
    join_processes,
    report_errors_once,
)
from regard.training.parallelism import _parameters_only
from regard.training.progress import Progress
from regard.training.run import run_recipe
from regard.training.state import TrainingState
from regard.training.tasks.registry import load_recipe
from tests.conftest import ENVIRONMENT, SMALL, settings_of, small_recipe
from tests.forks import Forked
from tests.images import TINY
from tests.training.test_workers import children

STEPS = 12
LATE = 9  # a validation step
SHORT = {
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "optim.accumulate": 6,
    "batch.tokens": 64,
    "objective.guided_attention": {"steps": 20},  # a loss with several parts
    "training.steps": STEPS,
    "training.average": 0.4,
    "training.log_every": 1,
    "training.validate_every": LATE,
    "training.valid_sentences": 30,
    "training.checkpoint_every": 2,
    "training.keep_checkpoints": 9,
}


def words(toy: Path, out: Path, **changes: object) -> list[str]:
    settings = settings_of(SMALL | SHORT | {key.replace("__", "."): value for key, value in changes.items()})
    files = ["--src", str(toy / "train.en"), "--tgt", str(toy / "train.zh")]
    return ["train", *files, "--out", str(out), *settings]


def start_processes(
    processes: int, folder: Path, train: list[str], prepare: Sequence[Callable[[], object] | None] = ()
) -> list[Forked]:
    """Start several processes with the environment of torchrun; each may call a function first."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    world = address | {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    calls = prepare or [None] * processes
    return [Forked(train, folder, world | rank, call) for rank, call in zip(ranks, calls, strict=True)]


def launch(processes: int, folder: Path, train: list[str]) -> str:
    """Run several processes with the environment of torchrun, and return the output of the first."""
    started = start_processes(processes, folder, train)
    output = [process.communicate(timeout=300) for process in started]
    for process in started:
        process.end()
    assert [process.returncode for process in started] == [0] * processes, output
    return output[0][0]


def run_alone(toy: Path, out: Path, further: dict[str, Any] | None = None) -> Path:
    changes: dict[str, Any] = {key.replace(".", "__"): value for key, value in (SHORT | (further or {})).items()}
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", **changes), out)
    return out


@pytest.fixture(scope="module")
def alone(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a single process without dropout. Read-only."""
    return run_alone(toy, tmp_path_factory.mktemp("alone") / "run")


def curve(out: Path) -> list[float]:
    """The loss of every step and its parts, then the validation losses; the last is of averaged weights."""
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [entry for entry in entries if "loss" in entry]
    assert [entry["step"] for entry in steps] == list(range(1, STEPS + 1)), "each step once"
    figures = [entry[name] for name in ("loss", "cross_entropy", "guide", "tokens") for entry in steps]
    return figures + [entry["validation"]["loss"] for entry in entries if "validation" in entry]


def weights(out: Path, which: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(out / which / "model.safetensors")


def assert_same_training(out: Path, alone: Path) -> None:
    assert curve(out) == pytest.approx(curve(alone), abs=1e-4)
    assert curve(alone)[STEPS - 1] < curve(alone)[0] - 1, "the loss falls"
    ours, theirs = weights(out, "last"), weights(alone, "last")
    assert ours.keys() == theirs.keys()
    for name in ours:
        if "qkv.bias" not in name:  # the bias of the keys has no effect, so its gradient is rounding noise
            assert torch.allclose(ours[name], theirs[name], atol=1e-3), name


def go_back(run: Path, step: int, to: Path) -> Path:
    """A copy of a run as if it had been killed after the checkpoint of this step."""
    shutil.copytree(run, to)
    (to / "checkpoints" / "last").write_text(f"step-{step:08d}\n")
    return to


# In several processes


def test_two_processes_agree_with_one_and_save_the_same_step_on_sigterm(toy: Path, tmp_path: Path, alone: Path) -> None:
    arguments = words(toy, tmp_path / "run", training__checkpoint_every=100)
    started = start_processes(2, tmp_path, arguments, [terminate_at_late_step] * 2)
    (output, message), silence = (process.communicate(timeout=300) for process in started)
    assert [process.returncode for process in started] == [128 + signal.SIGTERM] * 2
    assert re.findall(r"^saved at step (\d+); the same command resumes from there$", output, re.M) == [str(LATE)]
    assert (message, *silence) == ("regard: interrupted\n", "", ""), "only one process prints"
    (place,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert {path.name for path in place.iterdir()} == {"state.safetensors", "state.json", "manifest.json"}
    run_alone(toy, tmp_path / "run")  # a single process continues
    assert_same_training(tmp_path / "run", alone)


def terminate_at_late_step() -> None:
    """Send SIGTERM to this process, as torchrun does, after a validation step."""
    show = Progress.step

    def show_and_end(progress: Progress, step: int, report: dict[str, float]) -> None:
        show(progress, step, report)
        if step == LATE:
            os.kill(os.getpid(), signal.SIGTERM)

    Progress.step = show_and_end  # type: ignore[method-assign]


def test_sharded_run_survives_a_killed_process_and_resumes_with_one_or_three(
    toy: Path, tmp_path: Path, alone: Path
) -> None:
    sharded = words(toy, tmp_path / "two", training__sharding="fsdp")
    kill_second_process(tmp_path, sharded)
    assert "\nresuming from step 4\n" in launch(2, tmp_path, sharded)
    assert_same_training(tmp_path / "two", alone)
    files = {path.name for path in (tmp_path / "two" / "checkpoints" / "step-00000006").iterdir()}
    assert len([name for name in files if name.endswith(".safetensors")]) == 2
    assert {name for name in files if not name.endswith(".safetensors")} == {"state.json", "manifest.json"}

    one, three = (go_back(tmp_path / "two", 6, tmp_path / name) for name in ("one", "three"))
    run_alone(toy, one)
    assert_same_training(one, alone)
    output = launch(3, tmp_path, words(toy, three, training__sharding="fsdp"))
    assert "resuming from step 6\n" in output
    assert "resuming with 3 instead of 2 processes" in output
    assert_same_training(three, alone)


def kill_second_process(folder: Path, train: list[str]) -> None:
    """Start two processes, of which the second kills itself in step 5, and the first ends because of that."""
    started = start_processes(2, folder, train, [None, kill_in_step_5])
    (_, message), _ = (process.communicate(timeout=300) for process in started)
    assert "process 0 stops because another process has ended" in message
    assert "Traceback" not in message
    assert [process.returncode for process in started] == [1, -signal.SIGKILL]


def kill_in_step_5() -> None:
    """Kill this process in its fifth step."""
    steps: list[object] = []

    def count(*_: object) -> None:
        steps.append(None)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)


def test_restart_after_a_killed_process_ends_with_identical_weights(toy: Path, tmp_path: Path) -> None:
    with_dropout = {"model__dropout": 0.2}
    launch(2, tmp_path, words(toy, tmp_path / "whole", **with_dropout))
    killed = words(toy, tmp_path / "killed", **with_dropout)
    kill_second_process(tmp_path, killed)
    assert re.findall(r"resuming from step (\d+)", launch(2, tmp_path, killed)) == ["4"]
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    for which in ("best", "last"):
        ours, theirs = weights(tmp_path / "killed", which), weights(tmp_path / "whole", which)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_killed_data_worker_of_one_process_ends_all_with_a_checkpoint(toy: Path, tmp_path: Path) -> None:
    endless = words(toy, tmp_path / "run", training__steps=100_000, training__workers=1, optim__accumulate=2)
    first, second = start_processes(2, tmp_path, endless)
    for line in first.stdout:
        if line.startswith("step 3/"):
            break
    os.kill(children(second.pid)[0], signal.SIGKILL)
    (_, message), (_, silence) = (process.communicate(timeout=300) for process in (first, second))
    assert re.fullmatch(
        r"regard: data worker 1 \(process \d+\) was killed by SIGKILL, perhaps because memory ran out; "
        r"saved at step \d+; the same command resumes from there\n",
        message,
    )
    assert silence == ""
    assert (first.returncode, second.returncode) == (2, 2)
    step = re.findall(r"saved at step (\d+)", message)[0]
    assert (tmp_path / "run" / "checkpoints" / "last").read_text() == f"step-{int(step):08}\n"


def test_two_processes_agree_with_one_on_images(painted: Path, tmp_path: Path) -> None:
    settings = TINY | {"optim.accumulate": 2, "augmentation.preset": "strong", "training.steps": 6, "training.ema": 0.5}
    run_recipe(load_recipe(None, [], settings | {"data.images": str(painted)}), tmp_path / "alone")
    launch(2, tmp_path, ["train", "--data", str(painted), "--out", str(tmp_path / "two"), *settings_of(settings)])
    ours, theirs = weights(tmp_path / "two", "last"), weights(tmp_path / "alone", "last")
    for name in theirs:
        if "qkv.bias" not in name:
            assert torch.allclose(ours[name], theirs[name], atol=1e-4), name


def test_two_processes_with_captured_steps_agree_with_one(toy: Path, tmp_path: Path) -> None:
    captured = {"training.cuda_graph": True, "optim.accumulate": 2}
    plain = run_alone(toy, tmp_path / "alone", captured)
    output = launch(2, tmp_path, words(toy, tmp_path / "two", training__cuda_graph=True, optim__accumulate=2))
    assert_same_training(tmp_path / "two", plain)
    assert "capture" not in output, "no process ran its steps eagerly for lack of memory"


def test_process_may_run_a_step_eagerly_while_another_replays_it(toy: Path, tmp_path: Path) -> None:
    """The first process never captures; steps of both communicate in the same way."""
    arguments = words(toy, tmp_path / "two", training__cuda_graph=True, optim__accumulate=2)
    started = start_processes(2, tmp_path, arguments, [run_steps_eagerly, None])
    output = [process.communicate(timeout=300) for process in started]
    for process in started:
        process.end()
    assert [process.returncode for process in started] == [0, 0], output
    plain = run_alone(toy, tmp_path / "alone", {"training.cuda_graph": True, "optim.accumulate": 2})
    assert_same_training(tmp_path / "two", plain)


def run_steps_eagerly() -> None:
    """Capture no steps in this process."""
    cuda_graph.WARMUP_STEPS = 10**9


def test_collective_methods_agree_in_all_processes_also_after_a_restart(tmp_path: Path) -> None:
    script = Path(__file__).with_name("collectives.py")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
    ]
    command = [*torchrun, "--nproc-per-node", "2", "--max-restarts", "1", str(script), str(tmp_path)]
    environment = ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "lo"}
    output = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=300).stderr
    assert output.count("process 0 stops because another process has ended") == 1
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (first.pop("main_first"), second.pop("main_first")) == ("main", "other, mark True")
    assert first == second
    assert first == {
        "sum": 3,
        "max": 3,
        "gather": [{"rank": 0}, {"rank": 1}],
        "on_main": "by 0",
        "on_main_fails": "refused by 0",
        "sync_errors": ["from 0", "from 1"],
    }
    assert output.count("regard: the second process finds no data\n") == 1, "reported once"
    assert "exitcode: 1" in output or "exitcode: 2" in output


# Documented commands


def written_commands() -> list[list[str]]:
    docs = Path(__file__).parents[2] / "docs"
    text = "\n".join((docs / name).read_text(encoding="utf-8") for name in ("scaling.md", "zh/scaling.md"))
    return [shlex.split(line[1:]) for line in re.findall(r"^\$ .*torchrun.*$", text, re.M)]


@pytest.mark.parametrize("written", written_commands(), ids=lambda written: " ".join(written)[:60])
def test_documented_torchrun_commands_are_valid(written: list[str]) -> None:
    launch = get_args_parser().parse_args(written[written.index("torchrun") + 1 :])
    assert (launch.module, launch.training_script) == (True, "regard")
    command, *options = launch.training_script_args
    get_command(app).commands[command].make_context(command, list(options))  # type: ignore[attr-defined]
    (accumulate,) = [int(word.partition("=")[2]) for word in options if word.startswith("optim.accumulate=")]
    check_accumulation(accumulate, int(launch.nnodes.partition(":")[0]) * int(launch.nproc_per_node))


# In this process


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of torchrun with a single process."""
    here = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_checkpoint_of_one_process_can_be_sharded(
    sharding: str, toy: Path, tmp_path: Path, alone: Path, started: None
) -> None:
    run_alone(toy, go_back(alone, 10, tmp_path / "run"), {"training.sharding": sharding})
    assert_same_training(tmp_path / "run", alone)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_nccl_agrees_with_a_single_process(sharding: str, toy: Path, tmp_path: Path, started: None) -> None:
    gpu = {"training.device": "cuda", "training.precision": "float32", "batch.layout": "padded"}
    whole = run_alone(toy, tmp_path / "whole", gpu | {"training.sharding": sharding})
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name)
    plain = run_alone(toy, tmp_path / "plain", gpu)
    assert curve(whole) == pytest.approx(curve(plain), abs=1e-3)
    run_alone(toy, go_back(whole, 6, tmp_path / "back"), gpu)
    assert curve(tmp_path / "back") == pytest.approx(curve(plain), abs=1e-3)


def test_full_disk_ends_a_sharded_run_and_keeps_the_previous_checkpoint(
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
def test_uneven_accumulation_is_rejected(accumulate: int, world: int, advice: str) -> None:
    with pytest.raises(UserError, match=rf"a step of {accumulate} batch.* among {world} processes; set {advice} "):
        check_accumulation(accumulate, world)


def test_exactly_the_uneven_accumulations_are_rejected() -> None:
    for accumulate, world in product(range(1, 10), range(1, 10)):
        rejected = False
        try:
            check_accumulation(accumulate, world)
        except UserError:
            rejected = True
        assert rejected == bool(accumulate % world), (accumulate, world)


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda:1", "write cuda, not cuda:1"), ("cuda", "this machine has 2 GPUs for 3 processes; .*--nproc-per-node 2")],
)
def test_unavailable_devices_are_rejected(
    device: str, message: str, started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setattr("regard.training.distributed.choose_device", torch.device)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(UserError, match=message), join_processes(device):
        pass


@pytest.mark.parametrize(
    ("error", "code"), [(AgreedError("all"), 2), (UserError("bad recipe"), 2), (Interrupted(signal.SIGTERM), 143)]
)
def test_one_process_per_machine_reports_an_agreed_error(
    error: BaseException, code: int, started: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error)), report_errors_once():
        raise error
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(SystemExit) as quiet, report_errors_once():
        raise error
    assert quiet.value.code == code


def test_process_reports_its_own_error(started: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(LocalError, match="file is gone"), report_errors_once(), join_processes("cpu"):
        raise UserError("file is gone")
    torch.distributed.destroy_process_group()


def test_lost_process_is_reported_without_a_traceback(started: None) -> None:
    with pytest.raises(SystemExit, match="process 0 stops because another process has ended"), report_errors_once():
        raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer.")
    with pytest.raises(RuntimeError, match="a bug"), report_errors_once():
        raise RuntimeError("a bug")


def test_rendezvous_ignores_processes_of_earlier_starts() -> None:
    store = HashStore()
    for start in ("first", "second", "third"):
        met: dict[int, Any] = {}

        def join(rank: int, met: dict[int, Any] = met) -> None:
            met[rank] = fresh_store(store, rank, 3)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in (2, 0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not met[1].check(["address"]), "no entry of an earlier start"
        met[0].set("address", start)
        assert met[1].get("address") == met[2].get("address") == start.encode()


def test_rendezvous_times_out() -> None:
    with pytest.raises(TimeoutError, match="process 1 has not joined"):
        fresh_store(HashStore(), 0, 2, timeout=0.05)


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_parameter_only_copy_has_the_same_parameters_under_the_same_names(tie: str) -> None:
    model = Transformer(TransformerConfig.tiny(11, width=8, heads=2, hidden=8, tie=tie))
    copy = _parameters_only(model, {})
    theirs, ours = dict(model.named_parameters()), dict(copy.named_parameters())
    assert list(ours) == list(theirs)
    assert all(ours[name] is theirs[name] for name in theirs)
    assert copy.state_dict().keys() == model.state_dict().keys()
    assert not list(copy.buffers())


def drawn(rank: int, step: int = 0, seed: int = 1) -> float:
    """The first random number of a process after its generator was seeded by rank."""
    torch.manual_seed(5)
    model = nn.Linear(1, 1)
    state = TrainingState(model, torch.optim.AdamW(model.parameters()), processes=Processes(rank, 3))
    state.step = step
    state.seed_processes(seed)
    return torch.rand(1).item()


def test_processes_draw_different_random_numbers() -> None:
    different = [drawn(0), drawn(1), drawn(2), drawn(1, step=4), drawn(1, seed=2)]
    assert len(set(different)) == len(different)
    assert drawn(2) == different[2]
    torch.manual_seed(5)
    nn.Linear(1, 1)
    assert torch.rand(1).item() == different[0], "a single process keeps its random state"
