"""One visitor of the studio: a dream, who acts in it, and what of it is shown. No HTTP here.

Commands come in (:mod:`twm.studio.protocol`), messages go out: JSON objects, and packets with pictures. All but the
quick commands may compute for some milliseconds and belong into the one thread that dreams.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from twm.studio import starts, view
from twm.studio.dream import Dream, Model
from twm.studio.keys import idle_action
from twm.studio.protocol import Command, ProtocolError
from twm.studio.reality import Reality
from twm.studio.script import Script
from twm.studio.view import Source

Message = dict[str, Any] | bytes
Mode = Literal["you", "policy", "both"]

QUICK = {"act", "control", "speed", "temperature", "stop_at_end", "play", "pause", "ping"}
"""Commands that only set a switch: done at once, however many dreams wait for their turn."""


class Session:
    def __init__(self, source: Source, identity: str = "") -> None:
        self.source, self.identity = source, identity
        self.dream: Dream | None = None
        self.reality: Reality | None = None
        self.mode: Mode = "you"
        self.playing = False
        self.fps = 15.0
        self.temperature, self.policy_temperature = 1.0, 1.0
        self.stop_at_end = True
        self.focus = 0
        self._held: int | None = None  # action of the keys that are down
        self._script: Script | None = None  # a link that is being followed
        self._asked: dict[str, Any] | None = None  # the last start, to begin it again
        self._dreams = 0  # how many there were: tells the page when to clear its plots
        self._unsent = 0  # first moment that the page does not know yet
        self._ended: list[int | None] = []  # step at which the model ended each row's episode

    # ----------------------------------------------------------------------------------------------
    # What comes in

    def handle(self, command: Command) -> list[Message]:
        """Do what a message asks; raises :class:`ProtocolError` where it cannot be done, and goes on living."""
        answer: list[Message] | None = getattr(self, f"_on_{command.kind}")(**command.fields)
        return [] if answer is None else answer

    def tick(self) -> list[Message]:
        """One step of a dream that plays."""
        if not self.playing or self.dream is None:
            return []
        try:
            self._step()
        except Exception:
            self.playing = False
            raise
        return [self._packet()]

    def hello(self) -> dict[str, Any]:
        """What the page must know of the run before anything is dreamt."""
        return {"type": "hello", "session": self.identity, **view.introduction(self.source)}

    def close(self) -> None:
        """Free the dream and its environment."""
        self.playing, self.dream, self._script = False, None, None
        self._leave_reality()

    # Switches

    def _on_act(self, action: int | None) -> None:
        if action is not None:
            self._check_action(action)
            if self.mode != "policy":
                self._script = None  # a hand on the keys takes over
        self._held = action

    def _on_control(self, mode: Mode) -> None:
        self.mode, self._script = mode, None

    def _on_speed(self, fps: float) -> None:
        self.fps = fps

    def _on_temperature(self, latents: float | None, policy: float | None) -> None:
        if latents is not None:
            self.temperature, self._script = latents, None
        if policy is not None:
            self.policy_temperature = policy

    def _on_stop_at_end(self, on: bool) -> None:
        self.stop_at_end = on

    def _on_play(self) -> None:
        self._running()
        self.playing = True

    def _on_pause(self) -> list[Message]:
        self.playing = False
        return [{"type": "paused"}]

    def _on_ping(self, id: int) -> list[Message]:
        return [{"type": "pong", "id": id}]

    # Dreams

    def _on_start(self, start: dict[str, Any], rows: int, seed: int) -> list[Message]:
        model = self._newest_model()
        reality: Reality | None = None
        if start["kind"] == "real":
            reality = Reality(model, start)
            begin = reality.start
        elif start["kind"] == "replay":
            begin = starts.from_replay(model, self.source.replay(), start)
        else:
            begin = starts.from_latents(model, start)
        dream = Dream(model, begin, rows=rows, seed=seed)
        # Nothing is replaced before everything new is there: after an error the old dream goes on.
        self._leave_reality()
        if reality is not None and not start["beside"]:
            reality.close()
            reality = None
        self.dream, self.reality, self._script = dream, reality, None
        self._asked = {"start": start, "rows": rows, "seed": seed}
        self.playing = False
        self.focus = min(self.focus, rows - 1)
        self._dreams += 1
        self._unsent, self._ended = 0, [None] * rows
        self._compare()
        return [self._packet()]

    def _on_again(self) -> list[Message]:
        self._running()
        return self._on_start(**(self._asked or {}))

    def _on_branch(self, rows: int, seed: int) -> list[Message]:
        """Several dreams from the present state of the one in focus."""
        start = self._running().branch(self.focus)
        return self._on_start(start.origin, rows, seed)

    def _on_step(self) -> list[Message]:
        self._running()
        self.playing = False
        self._step()
        return [self._packet()]

    def _on_seek(self, t: int) -> list[Message]:
        self._running().seek(t)
        self.playing, self._script = False, None
        return [self._packet()]

    def _on_reseed(self, seed: int) -> list[Message]:
        self._running().reseed(seed)
        self._script = None
        self._cut()
        return [self._packet()]

    def _on_edit(self, row: int, variable: int, category: int) -> list[Message]:
        dream = self._running()
        dream.edit(row, variable, category)
        self._script = None
        self._cut()
        self._unsent = min(self._unsent, dream.t)
        self._compare()
        return [self._packet()]

    def _on_focus(self, row: int) -> list[Message]:
        dream = self._running()
        if row >= dream.rows:
            raise ProtocolError(f"expected a dream from 0 to {dream.rows - 1}, but came {row}")
        self.focus = row
        return [self._packet()]

    def _on_recipe(self) -> list[Message]:
        return [{"type": "recipe", "recipe": self._running().recipe()}]

    def _on_follow(self, recipe: dict[str, Any]) -> list[Message]:
        """Dream again what a link describes, as a film that anyone may step into."""
        script = Script(recipe, self._newest_model())
        remark = script.remark()
        self._on_start(**script.start())
        self._unsent = 0  # the packet of that start goes nowhere
        self._script = script
        self._follow_changes()
        self.playing = script.length > 0
        return [*([{"type": "notice", "message": remark}] if remark else []), self._packet()]

    # ----------------------------------------------------------------------------------------------
    # One step

    def _step(self) -> None:
        dream = self._running()
        actions, temperature, script = self._actions(dream), self.temperature, self._script
        if script is not None:
            actions, temperature = script.actions(dream.t), script.temperature(dream.t)
        self._cut()
        moment = dream.step(
            actions,
            temperature=temperature,
            policy_temperature=self.policy_temperature,
            together=self.reality is not None,
        )
        if self.reality is not None:
            self.reality.go_back([int(m.a[0]) for m in dream.trail[1:-1]])
            self.reality.step(int(moment.a[0]))
        self._compare()
        before = all(end is not None for end in self._ended)
        for row in np.flatnonzero(moment.gamma < dream.model.config.policy.discount / 2):
            self._ended[row] = dream.t if self._ended[row] is None else self._ended[row]
        if self.stop_at_end and not before and all(end is not None for end in self._ended):
            self.playing = False
        self._follow_changes()
        if dream.t >= dream.max_steps:
            self.playing = False

    def _actions(self, dream: Dream) -> list[int | None]:
        action: int | None = None
        if self.mode != "policy":
            action = self._held
            if action is None and self.mode == "you":
                idle = idle_action(dream.model.agent.spec.actions)
                action = int(dream.now.a[0]) if idle is None else idle
        return [action] * dream.rows

    def _follow_changes(self) -> None:
        """Edits and seeds that a link has at this step; behind its last step the dream pauses, free to go on."""
        dream, script = self.dream, self._script
        if dream is None or script is None:
            return
        script.change(dream)
        self._compare()
        if dream.t >= script.length:
            self.playing, self._script = False, None

    def _cut(self) -> None:
        """Another future begins here: forget what the page knows of the old one."""
        t = self._running().t
        self._unsent = min(self._unsent, t + 1)
        self._ended = [None if end is None or end > t else end for end in self._ended]
        if self.reality is not None:
            self.reality.cut(t)

    def _compare(self) -> None:
        """How far the first row is from reality at this step."""
        if self.reality is not None and self.dream is not None:
            self.reality.compare(self.dream.t, self.dream.frames([self.dream.now])[0, 0])

    # ----------------------------------------------------------------------------------------------
    # What goes out

    def _packet(self) -> bytes:
        dream = self._running()
        header = {
            "dream": self._dreams,
            "playing": self.playing,
            "mode": self.mode,
            "following": self._script is not None,
            "ended": [end if end is not None and end <= dream.t else None for end in self._ended],
        }
        packet = view.moment(header, dream, self.reality, self.focus, self._unsent)
        self._unsent = dream.length + 1
        return packet

    # ----------------------------------------------------------------------------------------------

    def _running(self) -> Dream:
        if self.dream is None:
            raise ProtocolError("no dream has begun: send a start first")
        return self.dream

    def _newest_model(self) -> Model:
        model = self.source.model()
        if model is None:
            raise ProtocolError("this run has no checkpoint yet: wait for it to save the first one")
        return model

    def _check_action(self, action: int) -> None:
        model = self._newest_model()
        if action >= model.agent.spec.num_actions:
            raise ProtocolError(f"expected an action from 0 to {model.agent.spec.num_actions - 1}, but came {action}")

    def _leave_reality(self) -> None:
        if self.reality is not None:
            self.reality.close()
            self.reality = None
