"""The gradients of a step that several processes take together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from regard.errors import UserError
from regard.training.distributed import Processes
from regard.training.memory import Gathered, is_out_of_memory
from regard.training.task import B, Loss, Task


class Together(Generic[B]):
    """`Pieces` for several processes. Batches stay whole, since all must pass through the model equally often.

    Args:
        task: what is trained.
        backward: adds the gradients of the batch's loss, divided by a number of tokens; given both, the step, and
            whether it is the last batch, after which gradients are averaged over the processes.
        processes: those that take the step.
    """

    def __init__(self, task: Task[B], backward: Callable[[B, float, int, bool], Loss], processes: Processes) -> None:
        self.task, self.backward, self.processes = task, backward, processes

    def gather(self, batches: Sequence[B], step: int) -> Gathered[B]:
        """Leaves in the model's parameters the gradients of the mean loss over all tokens of all processes.

        Raises:
            UserError: a batch does not fit into memory.
        """
        tokens = int(self.processes.sum(sum(map(self.task.count, batches)))[0])
        share = tokens / self.processes.world  # since gradients are averaged, not summed
        return Gathered([self._pass(batch, share, step, batch is batches[-1]) for batch in batches], tokens, 0, [], [])

    def fits(self, batch: B) -> bool:
        """Batches stay whole."""
        return True

    def _pass(self, batch: B, share: float, step: int, last: bool) -> Loss:
        try:
            return self.backward(batch, share, step, last)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            described, advice = self.task.describe(batch), self.task.advise(batch)
            raise UserError(f"out of memory ({described}); try {advice}, and more optim.accumulate") from None
