"""Training: the loop, its schedule, and the files of a run.

``twm.train(config, "runs/mine")`` trains. The name belongs to this package too, and importing anything of it binds
``twm.train`` to the package, so the package itself can be called: it hands over to :func:`twm.train.loop.train`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Training(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        from twm.train.loop import train

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _Training
