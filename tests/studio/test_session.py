"""A session as the page drives it: commands in, packets out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from twm.studio.library import Run
from twm.studio.protocol import ProtocolError, parse, unpack
from twm.studio.session import Session

REPLAY = {"kind": "replay", "index": 60}
REAL = {"kind": "real", "seed": 4, "steps": 12, "by": "policy", "beside": True}
Packet = tuple[dict[str, Any], dict[str, npt.NDArray[np.uint8]]]


class Page:
    """What a browser would do."""

    def __init__(self, run: Run) -> None:
        self.session = Session(run, "me")

    def send(self, kind: str, **fields: Any) -> list[Any]:
        answer = self.session.handle(parse(json.dumps({"type": kind, **fields})))
        return [unpack(message) if isinstance(message, bytes) else message for message in answer]

    def packet(self, kind: str, **fields: Any) -> Packet:
        return self.send(kind, **fields)[-1]  # type: ignore[no-any-return]

    def start(self, start: dict[str, Any] = REPLAY, rows: int = 1, seed: int = 3) -> Packet:
        return self.packet("start", start=start, rows=rows, seed=seed)

    def play_out(self) -> Packet:
        """Tick until it pauses by itself."""
        last = b""
        while self.session.playing:
            (last,) = self.session.tick()  # type: ignore[assignment]
        return unpack(last)


@pytest.fixture
def page(run: Run) -> Page:
    return Page(run)


def test_hello_introduces_the_game(page: Page) -> None:
    hello = page.session.hello()
    assert hello["ready"] is True
    assert (hello["env"], hello["actions"]) == ("Catch", ["LEFT", "STAY", "RIGHT"])
    assert (hello["latents"], hello["replay"], hello["checkpoint"]) == ([16, 16], 160, 160)
    assert hello["attention"] == {"layers": 2, "modalities": ("states", "actions", "rewards"), "steps": 9}
    json.dumps(hello)


def test_before_a_start_there_is_nothing(page: Page) -> None:
    for kind in ("play", "step", "again", "recipe"):
        with pytest.raises(ProtocolError, match="no dream has begun"):
            page.send(kind)
    assert page.session.tick() == []


def test_a_start_shows_the_real_state_as_the_model_sees_it(page: Page, run: Run) -> None:
    header, parts = page.start()
    model, replay = run.model(), run.replay()
    assert model is not None
    assert replay is not None
    assert (header["t"], header["length"], header["rows"], header["playing"]) == (0, 0, 1, False)
    assert parts["frames"].shape == (1, 1, 16, 16)
    import torch

    world_model = model.agent.world_model
    seen = world_model.decode(world_model.encode(torch.as_tensor(replay.observations([60]))))[0, -1:].numpy()
    np.testing.assert_array_equal(parts["frames"][0], seen)


@pytest.mark.parametrize("index", [0, 1, 39, 40, 45, 159])
def test_context_stays_within_the_episode(page: Page, index: int) -> None:
    """Episodes of Catch take 39 steps, so those of the random prefill begin at 0, 39, 78."""
    page.start({"kind": "replay", "index": index})
    dream = page.session.dream
    assert dream is not None
    assert len(dream.start.a) == min(8, index % 39)


def test_you_act_the_policy_acts_both_act(page: Page) -> None:
    page.start()
    page.send("control", mode="you")
    assert page.packet("step")[0]["steps"]["a"] == [[1]]  # no key: STAY
    page.send("act", action=2)
    assert page.packet("step")[0]["steps"]["a"] == [[2]]
    page.send("control", mode="both")
    assert page.packet("step")[0]["steps"]["a"] == [[2]]
    page.send("act", action=None)
    page.send("control", mode="policy")
    page.send("temperature", policy=0.0)
    header, _ = page.packet("step")
    assert page.session.dream is not None
    expected = int(page.session.dream.trail[-2].policy[0].argmax())
    assert header["steps"]["a"] == [[expected]]
    with pytest.raises(ProtocolError, match="expected an action from 0 to 2, but came 3"):
        page.send("act", action=3)


def test_packets_bring_what_the_page_lacks(page: Page) -> None:
    page.start(rows=2)
    page.session.stop_at_end = False
    for t in range(1, 4):
        header, parts = page.packet("step")
        assert (header["t"], header["length"], header["first"]) == (t, t, t)
        assert {name: len(values) for name, values in header["steps"].items()} == dict.fromkeys(header["steps"], 1)
    assert {name: part.shape for name, part in parts.items()} == {
        "frames": (2, 1, 16, 16),
        "expected": (16, 16),
        "attention": (2, 3, 9),
    }
    assert abs(int(parts["attention"][0].astype(int).sum()) - 255) < 20  # weights that add up to 1, in bytes
    header, _ = page.packet("seek", t=1)
    assert (header["t"], header["length"], header["first"], header["steps"]["a"]) == (1, 3, 4, [])
    header, _ = page.packet("step")
    assert (header["t"], header["length"], header["first"], len(header["steps"]["a"])) == (2, 2, 2, 1)


def test_rewinding_shows_the_same_picture(page: Page) -> None:
    page.start()
    pictures = [page.packet("step")[1]["frames"] for _ in range(6)]
    np.testing.assert_array_equal(page.packet("seek", t=3)[1]["frames"], pictures[2])


def test_an_edit_changes_the_picture(page: Page) -> None:
    header, before = page.start()
    category = (header["latents"][5] + 1) % 16
    header, after = page.packet("edit", row=0, variable=5, category=category)
    assert header["latents"][5] == category
    assert header["first"] == 0
    assert len(header["steps"]["value"]) == 1
    assert (before["frames"] != after["frames"]).any()


def test_reality_takes_the_same_actions(page: Page) -> None:
    page.send("control", mode="policy")
    header, parts = page.start(REAL, rows=2)
    assert parts["real"].shape == (1, 16, 16)
    assert len(header["reality"]["difference"]) == 1
    for _ in range(5):
        header, parts = page.packet("step")
        assert len(set(header["steps"]["a"][0])) == 1  # all rows do what reality does
    reality, dream = page.session.reality, page.session.dream
    assert reality is not None
    assert dream is not None
    np.testing.assert_array_equal(parts["real"], reality.frames[5])
    page.packet("seek", t=2)
    header, parts = page.packet("step")
    assert len(reality.frames) == 4
    assert (header["reality"]["first"], len(header["reality"]["difference"])) == (3, 1)
    header, parts = page.start()
    assert "real" not in parts
    assert page.session.reality is None


def test_a_fresh_episode_without_reality_beside_it(page: Page) -> None:
    _, parts = page.start({**REAL, "beside": False})
    assert "real" not in parts


def test_dreams_stop_where_the_model_ends_the_episode(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.start(rows=2)
    dream = page.session.dream
    assert dream is not None
    step = dream.step

    def ending(*args: Any, **options: Any) -> Any:
        moment = step(*args, **options)
        gamma = np.array([0.1 if dream.t == 3 else 0.99, 0.1 if dream.t == 5 else 0.99], np.float32)
        dream.trail[-1] = moment._replace(gamma=gamma)
        return dream.trail[-1]

    monkeypatch.setattr(dream, "step", ending)
    page.send("play")
    header, _ = page.play_out()
    assert (header["t"], header["ended"], header["playing"]) == (5, [3, 5], False)
    header, _ = page.packet("seek", t=4)
    assert header["ended"] == [3, None]
    page.packet("seek", t=5)
    page.send("play")  # and on, if one insists
    assert page.session.tick()
    assert page.session.playing


def test_several_dreams_from_the_present_state(page: Page) -> None:
    page.start()
    for _ in range(4):
        before = page.packet("step")
    header, parts = page.packet("branch", rows=4, seed=11)
    assert (header["rows"], header["t"], header["start"]) == (4, 0, {"kind": "latents"})
    assert header["dream"] == before[0]["dream"] + 1
    for row in range(4):  # rows of a batch may differ in the last bit, which is at most one shade
        apart = parts["frames"][row].astype(int) - before[1]["frames"][0]
        assert abs(apart).max() <= 1
    header, _ = page.packet("focus", row=3)
    assert header["focus"] == 3
    header, _ = page.packet("branch", rows=1, seed=0)
    assert header["focus"] == 0
    with pytest.raises(ProtocolError, match="expected a dream from 0 to 0, but came 1"):
        page.send("focus", row=1)


def recipe_of_a_varied_dream(page: Page, start: dict[str, Any]) -> tuple[dict[str, Any], Packet]:
    page.session.stop_at_end = False
    page.start(start, rows=2)
    page.send("control", mode="policy")
    for _ in range(20):
        page.packet("step")
    page.packet("seek", t=15)
    page.packet("reseed", seed=77)
    page.packet("edit", row=1, variable=0, category=3)
    page.send("temperature", latents=0.5)
    for _ in range(20):
        last = page.packet("step")
    return page.send("recipe")[0]["recipe"], last


@pytest.mark.parametrize("start", [REPLAY, REAL])
def test_a_link_reproduces_the_dream(run: Run, start: dict[str, Any]) -> None:
    recipe, last = recipe_of_a_varied_dream(Page(run), start)
    recipe = json.loads(json.dumps(recipe))
    page = Page(run)
    page.session.stop_at_end = False
    first = page.packet("follow", recipe=recipe)
    assert first[0]["following"] is True
    assert (first[0]["first"], len(first[0]["steps"]["value"])) == (0, 1)  # the moment where it begins
    header, parts = page.play_out()
    assert (header["t"], header["following"]) == (35, False)
    np.testing.assert_array_equal(parts["frames"], last[1]["frames"])
    assert page.send("recipe")[0]["recipe"] == recipe
    assert "real" not in parts or (parts["real"] == last[1]["real"]).all()


def test_a_link_to_a_branch_needs_no_past(run: Run) -> None:
    page = Page(run)
    page.start()
    for _ in range(12):
        page.packet("step")
    page.packet("branch", rows=2, seed=5)
    for _ in range(6):
        last = page.packet("step")
    recipe = json.loads(json.dumps(page.send("recipe")[0]["recipe"]))
    other = Page(run)
    other.session.stop_at_end = False
    other.packet("follow", recipe=recipe)
    np.testing.assert_array_equal(other.play_out()[1]["frames"], last[1]["frames"])


def test_a_hand_on_the_keys_takes_over_from_a_link(run: Run) -> None:
    recipe, _ = recipe_of_a_varied_dream(Page(run), REPLAY)
    page = Page(run)
    page.packet("follow", recipe=recipe)
    page.session.tick()
    page.send("control", mode="you")
    page.send("act", action=0)
    (message,) = page.session.tick()
    assert isinstance(message, bytes)
    header, _ = unpack(message)
    assert header["following"] is False
    assert header["steps"]["a"] == [[0, 0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"actions": [[0, 1]]}, "one list of actions for each row"),
        ({"actions": [[0], [0, 1]]}, "all of one length"),
        ({"actions": [[0], [9]]}, "expected actions from 0 to 2"),
        ({"seeds": []}, "expected a seed from step 0 on"),
        ({"start": {"kind": "replay", "index": 10**9}}, "the replay holds steps 0 to 159"),
        ({"start": {"kind": "latents", "z": [[0]], "a": [], "r": []}}, "expected states of 16 variables"),
        ({"start": {"kind": "latents", "z": [[99] * 16], "a": [], "r": []}}, "with 16 categories"),
        ({"start": {"kind": "latents", "z": [], "a": [], "r": []}}, "k + 1 states"),
        ({"start": {"kind": "latents", "z": [[0] * 16] * 2, "a": [7], "r": [0]}}, "expected actions from 0 to 2"),
    ],
)
def test_bad_links_are_refused_and_the_dream_goes_on(page: Page, change: dict[str, Any], words: str) -> None:
    page.start()
    good = {
        "version": 1,
        "env": "Catch",
        "checkpoint": 160,
        "start": REPLAY,
        "rows": 2,
        "seeds": [[0, 1]],
        "temperatures": [],
        "actions": [[0], [1]],
        "edits": [],
    }
    with pytest.raises(ProtocolError) as error:
        page.packet("follow", recipe={**good, **change})
    assert words in str(error.value)
    assert page.packet("step")[0]["t"] == 1


def test_a_link_from_another_checkpoint_says_so(page: Page) -> None:
    page.start()
    recipe = page.send("recipe")[0]["recipe"]
    notice, packet = page.send("follow", recipe={**recipe, "checkpoint": 99})
    assert "made with Catch after 99 interactions; here is Catch after 160" in notice["message"]
    assert packet[0]["playing"] is False  # it has no steps


def test_a_link_from_other_weights_says_so(page: Page) -> None:
    """Another run of the game may have a checkpoint of the same step; links that do not name their weights are old."""
    page.start()
    recipe = page.send("recipe")[0]["recipe"]
    assert len(page.send("follow", recipe=recipe)) == 1  # the packet alone, no notice
    notice, _ = page.send("follow", recipe={**recipe, "weights": "0badcafe"})
    assert "made with other weights" in notice["message"]
    del recipe["weights"]
    assert len(page.send("follow", recipe=recipe)) == 1


def test_a_failing_step_pauses(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.start()
    page.send("play")
    monkeypatch.setattr(page.session.dream, "step", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.session.tick()
    assert page.session.playing is False
    monkeypatch.undo()
    assert page.packet("step")[0]["t"] == 1


def test_closing_frees_dream_and_environment(page: Page) -> None:
    import weakref

    page.start(REAL)
    dream, reality = weakref.ref(page.session.dream), weakref.ref(page.session.reality)  # type: ignore[type-var]
    page.session.close()
    assert dream() is None
    assert reality() is None
