"""`record_flow`: the vectors of every token between the sublayers of a model, from the embedding to the last block.

Shapes: N tokens of a sequence, W model width.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.layers import FeedForward, ResidualBlock

Sublayer = Literal["attention", "cross", "feed_forward"]
SUBLAYERS: tuple[Sublayer, ...] = ("attention", "cross", "feed_forward")


@dataclass(frozen=True)
class FlowStep:
    """One sublayer of a block, applied to the tokens of a sequence.

    Attributes:
        sublayer: Kind of the sublayer.
        update: What the sublayer adds to each token, (N, W).
        output: The tokens after the residual connection and, in post-norm models, LayerNorm, (N, W).
    """

    sublayer: Sublayer
    update: Tensor
    output: Tensor


class Flow:
    """Recorded inputs and outputs of modules by name, one entry per call; see `record_flow`."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._inputs: dict[str, list[Tensor]] = {}
        self._outputs: dict[str, list[Tensor]] = {}

    def input(self, name: str, call: int = -1) -> Tensor:
        """Return the first argument of a call of a module, of the first sequence of the batch."""
        return self._inputs[name][call][0]

    def output(self, name: str, call: int = -1) -> Tensor:
        """Return the result of a call of a module, of the first sequence of the batch."""
        return self._outputs[name][call][0]

    def module(self, name: str) -> Any:
        """Return a module of the model."""
        return self._modules[name]

    def blocks(self) -> list[str]:
        """Return the names of the blocks that were called, in model order."""
        return [
            name
            for name, module in self._modules.items()
            if isinstance(module, ResidualBlock) and name in self._outputs
        ]

    def steps(self, block: str, call: int = -1) -> list[FlowStep]:
        """Return the sublayers of a call of a block, in order."""
        module: Any = self._modules[block]
        names = [name for name in SUBLAYERS if hasattr(module, name)]
        # The stream after a sublayer is the input of the next norm (pre-norm) or of the next sublayer (post-norm).
        followers = [f"norm{number}" for number in range(2, len(names) + 1)] if module.pre_norm else names[1:]
        stream = [self.input(f"{block}.{name}", call) for name in followers] + [self.output(block, call)]
        before = [self.input(block, call), *stream]
        if module.pre_norm:
            updates = [after - earlier for after, earlier in zip(stream, before[:-1], strict=True)]
        else:
            updates = [self.output(f"{block}.{name}", call) for name in names]
        return [FlowStep(*step) for step in zip(names, updates, stream, strict=True)]

    def record(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        """Return a forward hook that records the calls of a module."""

        def hook(_: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
                self._inputs.setdefault(name, []).append(args[0].detach())
                self._outputs.setdefault(name, []).append(result.detach())

        return hook


@contextmanager
def record_flow(model: nn.Module) -> Iterator[Flow]:
    """Record the inputs and outputs of modules of a model within the block.

    The results of the model do not change. Fused blocks are replaced by plain ones while the flow is recorded.

    Examples:
        >>> import torch, regard
        >>> model = regard.ViT(regard.ViTConfig.micro(classes=10)).eval()
        >>> with record_flow(model) as flow, torch.no_grad():
        ...     _ = model(torch.zeros(1, 3, 32, 32))
        >>> [step.sublayer for step in flow.steps("encoder.0")]
        ['attention', 'feed_forward']
    """
    flow = Flow(model)
    inner_modules = [name for name, module in model.named_modules() if isinstance(module, Attention | FeedForward)]
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name and not any(name.startswith(f"{inner}.") for inner in inner_modules):
                handle = module.register_forward_hook(flow.record(name))
                stack.callback(handle.remove)
        yield flow
