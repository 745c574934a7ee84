"""View of a model at a checkpoint of its training."""

from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.models.folder import read_safetensors
from regard.pipelines.translator import Translator
from regard.serving.page_data.text import view_map
from regard.serving.training_log import checkpoint_folder
from regard.training.checkpoint import TENSORS
from regard.training.state import model_tensors


class Checkpoints:
    """The translator of a run with the weights of one of its checkpoints.

    Args:
        run: folder of the training run.
        device: where the model is loaded when it is needed for the first time.
    """

    def __init__(self, run: Path, device: str) -> None:
        self._run, self._device = run, device
        self._translator: Translator | None = None
        self._step: int | None = None

    def view_map(self, settings: Any, request: dict[str, Any]) -> bytes:
        """Return the packet of `view_map` for the weights of the checkpoint of a step."""
        if self._translator is None:
            self._translator = Translator.load(self._run, device=self._device)
        if self._step != request["step"]:
            self._load(self._translator, request["step"])
        return view_map(self._translator, settings, request)

    def _load(self, translator: Translator, step: int) -> None:
        path = checkpoint_folder(self._run, step) / TENSORS
        if not path.is_file():
            raise UserError(f"step {step}: this checkpoint has been deleted, or its weights are sharded")
        self._step = None
        translator.model.load_state_dict(model_tensors(read_safetensors(path)), strict=False)
        self._step = step
