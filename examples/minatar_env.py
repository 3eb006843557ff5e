"""MinAtar as pictures: pip install MinAtar, then in this directory

twm train --preset tiny --env minatar_env:breakout --env-options.no-gray --out runs/minatar
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from minatar.gym import register_envs

register_envs()
COLORS = np.array(
    [(80, 160, 255), (255, 220, 60), (120, 100, 20), (220, 70, 70)], np.uint8
)  # paddle, ball, trail, bricks


class Picture(gymnasium.ObservationWrapper[Any, Any, Any]):
    """MinAtar shows four grids of truth values, one for each kind of thing; this draws them in colours."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 3), np.uint8)

    def observation(self, observation: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
        picture = np.zeros((10, 10, 3), np.uint8)
        for kind in reversed(range(4)):
            picture[observation[..., kind].astype(bool)] = COLORS[kind]
        return picture


def breakout() -> gymnasium.Env[Any, Any]:
    return Picture(gymnasium.make("MinAtar/Breakout-v1"))
