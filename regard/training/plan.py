"""`regard plan`: memory, time, energy and cost of a training on several GPUs, computed from its recipe.

The time of a step on one GPU is the sum of three terms:

- linear layers: 6 operations per weight and token, at a share of the peak of the tensor cores;
- everything else, such as norms, attention, dropout and idle time: a number of passes over the activations that the
  backward pass needs, at the bandwidth of the memory;
- the update of the weights: bytes per parameter at the bandwidth of the memory.

The share and the number of passes were measured with one model, `base` on an H200. `StepCost.calibrated` scales the sum
to a measured step instead. Between GPUs, gradients are summed by a hierarchical ring: within each node, then between
nodes. With CUDA graphs this follows the backward pass; otherwise it overlaps with it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from regard.errors import UserError
from regard.models.folder import MODELS
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViTConfig
from regard.training.distributed import check_accumulation
from regard.training.recipe import Recipe
from regard.training.tasks.classification.recipe import ClassificationRecipe
from regard.training.tasks.translation.recipe import TranslationRecipe

MATMUL_SHARE = 0.755
"""Share of the peak that linear layers reach."""
ACTIVATION_PASSES = 7.7
"""Passes over the activations by which everything but linear layers and the update is expressed."""
UPDATE_BYTES = 38
"""Bytes per parameter that an update moves: weight, gradient and two moments, read and written, with overhead."""
STATE_BYTES = 18
"""Bytes per parameter: weight, gradient and two moments in float32, and the weight rounded to bfloat16."""
NETWORK_SHARE = 0.8
"""Assumed share of the nominal bandwidth that a sum over GPUs reaches."""
BACKWARD_SHARE = 2 / 3
BUCKET_BYTES = 25 * 2**20
"""Bucket of DistributedDataParallel: the sum of the last one cannot overlap with the backward pass."""


@dataclass(frozen=True)
class Gpu:
    """Data sheet of a GPU: dense bfloat16 operations per second, memory, and bandwidths in bytes per second."""

    tflops: float
    memory_gb: float
    bandwidth_tb: float
    watts: float
    link_gb: float  # to each other GPU of the node together, in one direction


GPUS = {
    "h200": Gpu(989, 141, 4.8, 700, 450),
    "h100": Gpu(989, 80, 3.35, 700, 450),
    "a100": Gpu(312, 80, 2.04, 400, 300),
    "b200": Gpu(2250, 180, 8.0, 1000, 900),
    "l40s": Gpu(362, 48, 0.864, 350, 32),
    "rtx4090": Gpu(165, 24, 1.008, 450, 32),
}
INTERCONNECTS = {"infiniband-400": 50.0, "infiniband-200": 25.0, "ethernet-200": 3.1, "ethernet-100": 1.6}
"""GB/s per GPU between nodes of 8 GPUs, in one direction: InfiniBand has an adapter per GPU, Ethernet one per node."""


@dataclass(frozen=True)
class Workload:
    """What one batch of a recipe costs.

    Attributes:
        parameters: Parameters of the model.
        linear: Weights that each token is multiplied with.
        activation_bytes: Bytes per token that the backward pass needs.
        tokens: Tokens of a batch; of a translator, target tokens, beside as many source tokens.
        unit: What is reported per second, and how many tokens it has.
        captured: Whether steps are CUDA graphs.
    """

    parameters: int
    linear: int
    activation_bytes: int
    tokens: int
    unit: tuple[str, int]
    captured: bool

    @classmethod
    def of(cls, recipe: Recipe) -> "Workload":
        """Return the workload of a recipe, without reading its data.

        Raises:
            UserError: The kind of model or the precision is not covered.
        """
        if recipe.training.precision == "float32":
            raise UserError("training.precision: plan computes steps in bfloat16, not float32; set auto")
        captured = recipe.training.sharding == "ddp" and recipe.captured_by_default
        captured = captured and recipe.training.cuda_graph is not False
        if isinstance(recipe, TranslationRecipe):
            config: Any = recipe.model_settings(recipe.tokenizer.size, recipe.tokenizer.size)
            if isinstance(config, TransformerConfig):
                return cls.of_translator(config, recipe.batch.tokens, captured)
        if isinstance(recipe, ClassificationRecipe):
            config = recipe.model_settings(classes=1000)
            if isinstance(config, ViTConfig):
                return cls.of_vit(config, recipe.batch.images, captured)
        raise UserError(f"model.kind: plan computes transformer and vit, not {recipe.kind}")

    @classmethod
    def of_translator(cls, config: Any, tokens: int, captured: bool) -> "Workload":
        """Return the workload of a Transformer."""
        width, hidden, vocab = config.width, config.hidden, config.target_vocab
        attentions = config.encoder_layers + 2 * config.decoder_layers
        feed_forwards = config.encoder_layers + config.decoder_layers
        linear = attentions * 4 * width**2 + feed_forwards * 2 * width * hidden + width * vocab
        activations = _activations(attentions, feed_forwards, width, hidden, config.activation) + 2 * vocab
        return cls(_parameters(config), linear, activations, tokens, ("tokens", 1), captured)

    @classmethod
    def of_vit(cls, config: ViTConfig, images: int, captured: bool) -> "Workload":
        """Return the workload of a Vision Transformer."""
        (height, width_px), (down, across) = config.image, config.patch
        patches = (height // down) * (width_px // across)
        length = patches + config.registers + (config.pooling == "class")
        layers = config.layers
        linear = layers * (4 * config.width**2 + 2 * config.width * config.hidden)
        linear += down * across * config.channels * config.width
        activations = _activations(layers, layers, config.width, config.hidden, config.activation)
        return cls(_parameters(config), linear, activations, images * length, ("images", length), captured)


def _activations(attentions: int, feed_forwards: int, width: int, hidden: int, activation: str) -> int:
    """Return bytes per token, in bfloat16.

    An attention keeps its input, queries, keys, values, context and output; a feed-forward layer its input and output
    and the hidden features, before and after a GELU.
    """
    return attentions * 12 * width + feed_forwards * (4 * width + (2 if activation == "relu" else 4) * hidden)


def _parameters(config: Any) -> int:
    with torch.device("meta"):
        model = MODELS[config.kind](config)
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class StepCost:
    """Seconds of a batch and of an update on one GPU."""

    batch: float
    update: float

    @classmethod
    def of(cls, work: Workload, gpu: Gpu) -> "StepCost":
        linear = 6 * work.linear * work.tokens / (MATMUL_SHARE * gpu.tflops * 1e12)
        rest = ACTIVATION_PASSES * work.activation_bytes * work.tokens / (gpu.bandwidth_tb * 1e12)
        return cls(linear + rest, UPDATE_BYTES * work.parameters / (gpu.bandwidth_tb * 1e12))

    def calibrated(self, seconds: float, batches: int = 1) -> "StepCost":
        """Return the cost scaled to a measured step of `batches` batches on one GPU."""
        factor = seconds / (batches * self.batch + self.update)
        return StepCost(factor * self.batch, factor * self.update)


@dataclass(frozen=True)
class Cluster:
    """GPUs, and GB/s per GPU between nodes."""

    gpu: Gpu
    gpus: int = 1
    gpus_per_node: int = 8
    network_gb: float = 50.0

    def all_reduce_seconds(self, size: float) -> float:
        """Return the time of the sum of `size` bytes over all GPUs."""
        inside = min(self.gpus, self.gpus_per_node)
        nodes = -(-self.gpus // self.gpus_per_node)
        seconds = 2 * (inside - 1) / inside * size / (NETWORK_SHARE * self.gpu.link_gb * 1e9)
        between = 2 * (nodes - 1) / nodes * size / inside  # each GPU of a node sums its share with those of the others
        return seconds + between / (NETWORK_SHARE * self.network_gb * 1e9)


@dataclass(frozen=True)
class Plan:
    """Predictions for a training."""

    parameters: int
    gpus: int
    memory_gb: float  # per GPU, as allocated by PyTorch
    state_gb: float  # of which weights, gradients and optimizer state
    fits: bool
    step_ms: float
    exposed_ms: float  # of which communication that does not overlap with computation
    unit: str
    per_second: float
    efficiency: float  # share of the time in which GPUs compute
    steps: int
    hours: float
    gpu_hours: float
    energy_kwh: float
    cost: float | None

    def as_dict(self) -> dict[str, Any]:
        return {
            key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in asdict(self).items()
        }

    def lines(self) -> list[str]:
        """Return the plan as text."""
        note = "" if self.fits else " (does not fit)"
        rows = {
            "parameters": f"{self.parameters / 1e6:,.1f} M",
            "memory per GPU": f"{self.memory_gb:,.1f} GB{note}, "
            f"{self.state_gb:,.1f} GB of it for weights, gradients and optimizer state",
            "step": f"{self.step_ms:,.1f} ms, of which {self.exposed_ms:,.1f} ms waiting for other GPUs",
            "speed": f"{self.per_second:,.0f} {self.unit}/s on {self.gpus} GPU{'s' * (self.gpus > 1)} "
            f"({self.efficiency:.0%} efficiency)",
            "time": f"{self.hours:,.2f} hours for {self.steps:,} steps, {self.gpu_hours:,.1f} GPU hours",
            "energy": f"{self.energy_kwh:,.1f} kWh by the GPUs at full power",
        }
        if self.cost is not None:
            rows["cost"] = f"{self.cost:,.2f}"
        return [f"{name:16}{value}" for name, value in rows.items()]


def make_plan(
    recipe: Recipe,
    cluster: Cluster,
    *,
    measured: float | None = None,
    units: float | None = None,
    price: float | None = None,
    watts: float | None = None,
) -> Plan:
    """Predict a training.

    Args:
        recipe: The recipe; `optim.accumulate` batches of a step are divided among the GPUs.
        cluster: Where it runs.
        measured: Seconds of a step of this recipe on one GPU, to which the predicted time is scaled.
        units: Number of target tokens or images to train on; by default those of training.steps.
        price: Price of a GPU hour.
        watts: Power of a GPU; by default its limit.
    """
    accumulate, gpus = recipe.optim.accumulate, cluster.gpus
    check_accumulation(accumulate, gpus)
    work, gpu = Workload.of(recipe), cluster.gpu
    cost = StepCost.of(work, gpu)
    if measured is not None:
        cost = cost.calibrated(measured, accumulate)
    batches = accumulate // gpus
    sharded = recipe.training.sharding == "fsdp"
    computed = batches * cost.batch + cost.update / (gpus if sharded else 1)
    exposed = _exposed_seconds(work, cluster, cost, batches, sharded)
    step = computed + exposed
    name, length = work.unit
    units_per_step = accumulate * work.tokens / length
    steps = recipe.training.steps if units is None else max(1, round(units / units_per_step))
    hours = steps * step / 3600
    state = work.parameters * (((STATE_BYTES - 2) / gpus + 4) if sharded else STATE_BYTES)
    memory = state + work.activation_bytes * work.tokens + (0 if sharded or gpus == 1 else 4 * work.parameters)
    return Plan(
        parameters=work.parameters,
        gpus=gpus,
        memory_gb=memory / 1e9,
        state_gb=state / 1e9,
        fits=memory <= 0.93 * gpu.memory_gb * 1e9,
        step_ms=1000 * step,
        exposed_ms=1000 * exposed,
        unit=name,
        per_second=units_per_step / step,
        efficiency=computed / step,
        steps=steps,
        hours=hours,
        gpu_hours=gpus * hours,
        energy_kwh=gpus * hours * (gpu.watts if watts is None else watts) / 1000,
        cost=None if price is None else gpus * hours * price,
    )


def _exposed_seconds(work: Workload, cluster: Cluster, cost: StepCost, batches: int, sharded: bool) -> float:
    """Return the time of communication that does not overlap with computation."""
    if cluster.gpus == 1:
        return 0.0
    size = 4 * work.parameters  # gradients in float32
    if sharded:  # each batch gathers the weights twice, and scatters the sums of the gradients: half a sum each
        return batches * max(0.0, 1.5 * cluster.all_reduce_seconds(size) - cost.batch)
    seconds = cluster.all_reduce_seconds(size)
    if work.captured:
        return seconds
    return max(seconds - BACKWARD_SHARE * cost.batch, seconds * min(1.0, BUCKET_BYTES / size))


def read_measured(values: object, where: str) -> float:
    """Return the seconds of a step of "the recipe" in the JSON of `regard bench RUN --training --out FILE`."""
    rows = values.get("training") if isinstance(values, Mapping) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and row.get("name") == "the recipe" and isinstance(row.get("step_ms"), int | float):
            return float(row["step_ms"]) / 1000
    raise UserError(f"{where}: has no step time of the recipe; write it with regard bench RUN --training --out {where}")


def find_gpu(name: str, memory_gb: float | None = None) -> Gpu:
    """Return the data sheet of a GPU."""
    if name not in GPUS:
        raise UserError(f"--gpu {name}: no data sheet; known are {', '.join(GPUS)}")
    return GPUS[name] if memory_gb is None else replace(GPUS[name], memory_gb=memory_gb)


def parse_interconnect(text: str) -> float:
    """Return the GB/s per GPU between nodes of a name or a number."""
    if text in INTERCONNECTS:
        return INTERCONNECTS[text]
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        known = ", ".join(INTERCONNECTS)
        raise UserError(f"--interconnect {text}: write {known}, or the GB/s between nodes per GPU, such as 50")
    return value
