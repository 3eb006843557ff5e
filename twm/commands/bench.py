"""``twm bench``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from twm.commands import Output
from twm.commands.options import ConfigOptions, starting_point


@dataclass(frozen=True)
class Bench:
    """Time every part on this machine, beside the machine itself.

    units = seconds x GFLOPS of a float32 matrix product measured in the same run, so figures from different machines
    compare. Close other programs first: the best of a few repeats is shown, but a busy machine has no good ones.
    """

    source: Annotated[ConfigOptions, arg(name="")] = field(default_factory=ConfigOptions)
    quick: bool = False
    """Fewer repeats, a smaller replay, and no whole update, which its parts add up to."""
    out: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the result there too, as JSON with machine and commit."""
    json: bool = False
    """Print one JSON object; everything else goes to standard error."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> Bench:
        return cls(source=starting_point(args))

    def __call__(self) -> Output:
        config, _ = self.source.checked()
        self.source.announce()

        from twm.lab.bench import bench, table
        from twm.train.files import write_json

        result = bench(config, quick=self.quick, note=lambda text: print(text, file=sys.stderr, flush=True))
        result["settings"] = {"preset": self.source.origin, **result["settings"]}
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.out, result)
        return Output(result, table(result))
