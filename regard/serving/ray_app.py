"""The application on a Ray Serve cluster. Each replica has its own models and queues.

serve run regard.serving.ray_app:build runs=runs/en-zh,runs/en-de max_replicas=4
"""

from pathlib import Path
from typing import Any

from pydantic import Field
from ray import serve

from regard.config import Settings
from regard.serving.app import make_app
from regard.serving.config import ServingConfig
from regard.serving.messages import LoadRequest
from regard.serving.service import Service
from regard.serving.telemetry import configure_logging


class Arguments(Settings):
    """Arguments of `serve run`, as KEY=VALUE."""

    runs: str = Field(description="model folders or training runs, separated by commas")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    engine: str | None = Field(None, description="regard or ctranslate2, which supports fewer features")
    precision: str | None = Field(None, description="precision of the weights, such as int8")
    workers: int = Field(1, ge=1, description="worker processes per model and replica")
    threads: int = Field(1, ge=1, description="CPU threads per worker")
    cpus: float = Field(1.0, ge=0, description="CPU cores that Ray reserves for a replica")
    gpus: float = Field(0.0, ge=0, description="GPUs that Ray reserves for a replica")
    min_replicas: int = Field(1, ge=1, description="minimum number of replicas")
    max_replicas: int = Field(4, ge=1, description="maximum number of replicas")
    ongoing: int = Field(32, ge=1, description="target number of concurrent requests per replica")
    grow_after: float = Field(30.0, ge=0, description="seconds of higher load before a replica is added")
    shrink_after: float = Field(600.0, ge=0, description="seconds of lower load before a replica is removed")
    keys: Path | None = Field(None, description="file of API keys")


def build(arguments: dict[str, Any]) -> serve.Application:
    """Return the application for `serve run`, whose number of replicas follows the load.

    All machines of the cluster need the runs at the same paths.
    """
    parsed = Arguments.parse(arguments, "serve run")
    options = parsed.model_dump(include={"device", "threads", "engine", "precision"})
    paths = [Path(run).resolve() for run in parsed.runs.split(",")]
    load_requests = [LoadRequest(path.name, path, **options) for path in paths]
    config = ServingConfig(load_requests, parsed.workers, keys=parsed.keys and parsed.keys.resolve())

    def build_app() -> Any:
        configure_logging()
        return make_app(Service(config), wait_for_models=True)

    deployment = serve.deployment(
        serve.ingress(build_app)(),
        name="regard",
        max_ongoing_requests=config.limits.concurrent,
        autoscaling_config={
            "min_replicas": parsed.min_replicas,
            "max_replicas": parsed.max_replicas,
            "target_ongoing_requests": parsed.ongoing,
            "upscale_delay_s": parsed.grow_after,
            "downscale_delay_s": parsed.shrink_after,
        },
        ray_actor_options={"num_cpus": parsed.cpus, "num_gpus": parsed.gpus},
        graceful_shutdown_timeout_s=config.limits.deadline,
    )
    return deployment.bind()
