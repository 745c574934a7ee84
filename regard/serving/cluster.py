"""The same app on a Ray cluster: replicas, each with its own models and queue, that come and go with the load.

serve run regard.serving.cluster:build runs=runs/en-zh,runs/en-de max_replicas=4
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import serve

from regard.config import Settings
from regard.serving.app import make_app
from regard.serving.logs import set_up_logs
from regard.serving.service import Offer, Service
from regard.serving.work import Order

ONGOING = 32
"""Requests that a replica has at once before another is started: enough for batches, few enough for short waits."""


class Arguments(Settings):
    """What `serve run` may say, as KEY=VALUE."""

    runs: str
    device: str = "auto"
    workers: int = 1
    threads: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    min_replicas: int = 1
    max_replicas: int = 4
    keys: Path | None = None


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application of `serve run`; every machine of the cluster must have the runs in the same place.

    Raises:
        UserError: an argument is unknown or wrong.
    """
    asked = Arguments.parse(arguments, "serve run")
    paths = [Path(run).resolve() for run in asked.runs.split(",")]
    orders = [Order(path.name, path, asked.device, asked.threads) for path in paths]
    return deploy(Offer(orders, asked.workers, keys=asked.keys), asked)


def deploy(offer: Offer, asked: Arguments) -> serve.Application:
    """A deployment of the app, with as many replicas as the load asks for."""

    def build_app() -> Any:
        set_up_logs()
        return make_app(Service(offer), patient=True)

    deployment = serve.deployment(
        serve.ingress(build_app)(),
        name="regard",
        max_ongoing_requests=offer.limits.concurrent,
        autoscaling_config={
            "min_replicas": asked.min_replicas,
            "max_replicas": asked.max_replicas,
            "target_ongoing_requests": ONGOING,
        },
        ray_actor_options={"num_cpus": asked.cpus, "num_gpus": asked.gpus},
        graceful_shutdown_timeout_s=offer.limits.deadline,
    )
    return deployment.bind()
