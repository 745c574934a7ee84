"""The same app on a Ray cluster: replicas, each with its own models and queue, that come and go with the load.

serve run regard.serving.ray_app:build runs=runs/en-zh,runs/en-de max_replicas=4
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field
from ray import serve

from regard.config import Settings
from regard.serving.app import make_app
from regard.serving.config import ServingConfig
from regard.serving.logs import set_up_logs
from regard.serving.messages import LoadRequest
from regard.serving.service import Service


class Arguments(Settings):
    """What `serve run` may say, as KEY=VALUE."""

    runs: str = Field(description="model folders or training runs, with commas between")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    engine: str | None = Field(None, description="regard, or ctranslate2, which can do less")
    precision: str | None = Field(None, description="of the weights, such as int8")
    workers: int = Field(1, ge=1, description="processes a model and replica")
    threads: int = Field(1, ge=1, description="CPU threads a process")
    cpus: float = Field(1.0, ge=0, description="cores that Ray sets aside for a replica")
    gpus: float = Field(0.0, ge=0, description="GPUs that Ray sets aside for a replica")
    min_replicas: int = Field(1, ge=1, description="as many at the least")
    max_replicas: int = Field(4, ge=1, description="as many at the most")
    ongoing: int = Field(32, ge=1, description="requests that each replica is to have at once; more let others start")
    grow_after: float = Field(30.0, ge=0, description="seconds of load before a replica is added")
    shrink_after: float = Field(600.0, ge=0, description="seconds without that before one is taken away")
    keys: Path | None = Field(None, description="a file of API keys' hashes")


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application of `serve run`; every machine of the cluster must have the runs in the same place.

    Raises:
        UserError: an argument is unknown or wrong.
    """
    asked = Arguments.parse(arguments, "serve run")
    paths = [Path(run).resolve() for run in asked.runs.split(",")]
    orders = [
        LoadRequest(path.name, path, asked.device, asked.threads, {}, asked.engine, asked.precision) for path in paths
    ]
    return deploy(ServingConfig(orders, asked.workers, keys=asked.keys and asked.keys.resolve()), asked)


def deploy(offer: ServingConfig, asked: Arguments) -> serve.Application:
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
            "target_ongoing_requests": asked.ongoing,
            "upscale_delay_s": asked.grow_after,
            "downscale_delay_s": asked.shrink_after,
        },
        ray_actor_options={"num_cpus": asked.cpus, "num_gpus": asked.gpus},
        graceful_shutdown_timeout_s=offer.limits.deadline,
    )
    return deployment.bind()
