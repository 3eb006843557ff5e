"""``twm export``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from twm.commands import Output


@dataclass(frozen=True)
class Export:
    """Write the acting policy of a run as ONNX, and all weights as safetensors with a model card.

    The ONNX file is checked against PyTorch on frames that the agent met.
    """

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run directory."""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """Where to write (default: RUN/export)."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which weights: the latest, or those with the best evaluation during training."""
    json: bool = False
    """Print one JSON object; everything else goes to standard error."""

    def __call__(self) -> Output:
        from twm.export import export

        result = export(self.run, self.out, checkpoint=self.checkpoint)
        text = (
            f"{result['out']}: policy.onnx, weights.safetensors, config.json, spec.json, README.md\n"
            f"checked on {result['frames_compared']} frames: logits differ from PyTorch's by at most "
            f"{result['largest_difference']:.1e}"
        )
        return Output(result, text)
