"""MiniGrid seen from above, as pixels: pip install minigrid, then in this directory

twm train --preset tiny --env minigrid_env:empty_room --env-options.size 32 --out runs/minigrid
"""

from typing import Any

import gymnasium
from minigrid.wrappers import ImgObsWrapper, RGBImgObsWrapper


def empty_room(render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Find the green square in a room of 3 x 3; three of the seven actions matter: turn left, turn right, forward."""
    env = gymnasium.make("MiniGrid-Empty-5x5-v0", render_mode=render_mode)
    return ImgObsWrapper(RGBImgObsWrapper(env))
