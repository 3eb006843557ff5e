"""A link that is followed: the recipe of a dream, read step by step."""

from __future__ import annotations

from typing import Any

from twm.studio.dream import Dream, Model
from twm.studio.protocol import ProtocolError


class Script:
    """A recipe (see :meth:`Dream.recipe`), checked against the model that is to dream it."""

    def __init__(self, recipe: dict[str, Any], model: Model) -> None:
        self.recipe, self._model = recipe, model
        actions, count = recipe["actions"], model.agent.spec.num_actions
        if len(actions) != recipe["rows"] or len({len(row) for row in actions}) != 1:
            raise ProtocolError("expected one list of actions for each row, all of one length")
        if not recipe["seeds"] or recipe["seeds"][0][0] != 0:
            raise ProtocolError("expected a seed from step 0 on")
        if any(action >= count for row in actions for action in row):
            raise ProtocolError(f"expected actions from 0 to {count - 1}")
        self.length = len(actions[0])

    def remark(self) -> str | None:
        """What to tell who follows it here, if this is not where it was made."""
        recipe, model = self.recipe, self._model
        made, here = (recipe["env"], recipe["checkpoint"]), (model.config.env, model.step)
        if made != here:
            return (
                f"This link was made with {made[0]} after {made[1]:,} interactions; here is {here[0]} after "
                f"{here[1]:,}: the dream may differ."
            )
        if recipe["weights"] not in (None, model.fingerprint()):
            return "This link was made with other weights, of another run or an earlier time: the dream may differ."
        return None

    def start(self) -> dict[str, Any]:
        """What to begin with."""
        return {"start": self.recipe["start"], "rows": self.recipe["rows"], "seed": self.recipe["seeds"][0][1]}

    def actions(self, t: int) -> list[int | None]:
        return [row[t] for row in self.recipe["actions"]]

    def temperature(self, t: int) -> float:
        changes = self.recipe["temperatures"]
        return next((value for since, value in reversed(changes) if since <= t), 1.0)

    def change(self, dream: Dream) -> None:
        """Give the dream the seeds and edits that belong to the step it has reached."""
        for t, seed in self.recipe["seeds"]:
            if t == dream.t and t > 0:
                dream.reseed(seed)
        for t, row, variable, category in self.recipe["edits"]:
            if t == dream.t:
                dream.edit(row, variable, category)
