"""Runs work on a Ray cluster with Ray Data: an actor per GPU or per some CPU cores, which is replaced if it is lost."""

import logging
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch

from regard.errors import UserError, import_optional
from regard.pipelines.executors import Done, Executor, Item, Result, Work, timed


class RayExecutor(Executor):
    """Runs work on a Ray cluster.

    Ray Data starts the actors, gives each of them few items ahead (backpressure), and starts actors and items again
    whose node was lost.

    Args:
        address: "ray" for the cluster of this machine, or a new one on this machine.
        workers: Number of actors; by default as many as the cluster has room for.
        threads: CPU cores of each actor.
        use_gpus: Whether each actor has a GPU.
    """

    def __init__(
        self, address: str = "ray", workers: int | None = None, threads: int | None = None, use_gpus: bool | None = None
    ) -> None:
        if address.startswith("ray://"):
            raise UserError(
                f"--on {address}: Ray Data does not support Ray Client; run the command on a node of the cluster with "
                f"--on ray, for example with ray job submit"
            )
        if address != "ray":
            raise UserError(f"--on {address}: write ray, for the cluster of this machine")
        self.ray = import_optional("ray", "ray", "--on ray")
        import_optional("ray.data", "ray", "--on ray")
        if not self.ray.is_initialized():
            try:
                self.ray.init(logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
                raise UserError(f"--on {address}: no Ray cluster answers ({str(error).splitlines()[0]})") from None
        resources = self.ray.cluster_resources()
        gpus, self.threads = int(resources.get("GPU", 0)), threads or 1
        self.gpus = 1 if (gpus > 0 if use_gpus is None else use_gpus) else 0
        room = gpus if self.gpus else int(resources.get("CPU", 1)) // self.threads
        self.workers = workers or max(1, room)

    def run(self, work: Work[Item, Result], items: Sequence[Item]) -> Iterator[Done[Result]]:
        if not items:
            return
        data = self.ray.data
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        data.DataContext.get_current().enable_progress_bars = False  # the command shows its own
        pickled = pickle.dumps(work)
        rows = [{"work": pickled, "item": pickle.dumps(item)} for item in items]
        results = data.from_items(rows, override_num_blocks=len(rows)).map(
            _Actor,
            fn_constructor_kwargs={"threads": self.threads},
            compute=data.ActorPoolStrategy(size=min(self.workers, len(items)), max_tasks_in_flight_per_actor=2),
            num_cpus=self.threads,
            num_gpus=self.gpus,
        )
        for row in results.iter_rows():
            done = pickle.loads(row["done"])
            if isinstance(done, UserError):
                raise done
            yield cast("Done[Result]", done)


class _Actor:
    """A worker, which opens its work with the first item.

    Errors that a user can correct are returned, so that they arrive as one sentence.
    """

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.function: Any = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        done: object
        try:
            if self.function is None:
                self.function = pickle.loads(row["work"]).open()
            done = timed(self.function, pickle.loads(row["item"]))
        except UserError as error:
            done = error
        return {"done": pickle.dumps(done)}
