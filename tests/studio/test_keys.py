"""Keys of some games."""

from __future__ import annotations

from twm.studio.keys import idle_action, key_bindings


def test_atari() -> None:
    names = ["NOOP", "FIRE", "UP", "DOWNLEFT", "UPRIGHTFIRE"]
    assert key_bindings(names) == [[], ["fire"], ["up"], ["down", "left"], ["up", "right", "fire"]]
    assert idle_action(names) == 0


def test_catch_and_nameless_actions() -> None:
    assert key_bindings(["LEFT", "STAY", "RIGHT"]) == [["left"], [], ["right"]]
    assert idle_action(["LEFT", "STAY", "RIGHT"]) == 1
    assert key_bindings(["0", "1"]) == [["1"], ["2"]]
    assert idle_action(["0", "1"]) is None
    assert key_bindings([str(i) for i in range(12)])[9:] == [["0"], [], []]
