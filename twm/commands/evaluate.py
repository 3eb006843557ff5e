"""``twm eval``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from twm.commands import Output, UsageError
from twm.commands.options import check_device
from twm.commands.summary import quality_text, score_text


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with the agent of a run, as in the evaluation at the end of training.

    With --world-model the dreams are measured instead: how far they stay right on episodes the model has not seen.
    """

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Run directory."""
    episodes: int = 100
    """Episodes to play."""
    seed: int = 0
    """Seed of environments and actions: the same seed plays the same episodes."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which weights: the latest, or those with the best evaluation during training."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes CUDA where there is one."""
    video: Annotated[Path | None, arg(metavar="FILE")] = None
    """Film the first episode into this .mp4."""
    world_model: bool = False
    """Measure the world model: open-loop dreams of 1, 5, 15 and 50 steps against copying the last frame, rewards and
    episode ends."""
    steps: int = 2000
    """With --world-model: fresh interactions to measure on."""
    quiet: bool = False
    """No progress display."""
    json: bool = False
    """Print one JSON object; everything else goes to standard error."""

    def __call__(self) -> Output:
        for name, value in (("episodes", self.episodes), ("steps", self.steps)):
            if value < 1:
                raise UsageError(f"--{name} must be at least 1, but is {value}")
        check_device(self.device)
        if self.world_model:
            if self.video:
                raise UsageError("--video films the agent, --world-model measures dreams: give one of them")
            from twm.analysis.quality import world_model_quality

            quality = world_model_quality(
                self.run, steps=self.steps, seed=self.seed, checkpoint=self.checkpoint, device=self.device
            )
            return Output(quality, quality_text(quality))

        from twm.train.evaluate import evaluate_run

        result = evaluate_run(
            self.run,
            episodes=self.episodes,
            seed=self.seed,
            checkpoint=self.checkpoint,
            device=self.device,
            video=self.video,
            quiet=self.quiet,
        )
        return Output(result, score_text(result))
