"""The page in a real browser, on a real server with a real (tiny) checkpoint, by keyboard and mouse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from studio.browsing import Page
from studio.serving import Served, serving, until

from twm.studio.library import Run

pytestmark = pytest.mark.browser


def test_play_with_keys(page: Page) -> None:
    """Paused, a press is one step; playing, the held key acts at every step."""
    page.mode("You")
    page.page.focus("#panels")
    before = page.picture()
    page.page.keyboard.press("ArrowLeft")
    page.at(1)
    assert page.taken() == "LEFT"
    assert page.picture() != before
    page.page.keyboard.press("d")
    page.at(2)
    assert page.taken() == "RIGHT"
    page.page.keyboard.press("p")
    page.page.keyboard.down("ArrowRight")
    assert page.page.locator("#keycaps .held").count() == 1
    pictures = set()
    page.until(lambda: pictures.add(page.picture()) or page.t() >= 12)
    assert len(pictures) >= 3
    assert page.taken() == "RIGHT"
    page.page.keyboard.up("ArrowRight")


def test_policy_mode_and_taking_over(page: Page) -> None:
    page.mode("Policy")
    page.page.click("#playpause")
    page.until(lambda: page.t() >= 5)
    assert page.page.text_content("#playpause") == "Pause"
    shares = page.page.eval_on_selector_all("#policy .share", "all => all.map(e => parseInt(e.textContent))")
    assert 98 <= sum(shares) <= 102
    page.mode("Both")
    page.page.keyboard.down("ArrowLeft")
    t = page.t()
    page.until(lambda: page.t() >= t + 4)
    assert page.taken() == "LEFT"
    page.page.keyboard.up("ArrowLeft")
    page.page.keyboard.press("p")

    def stands() -> bool:
        t = page.t()
        page.page.wait_for_timeout(300)
        return page.t() == t

    page.until(stands)  # not at once: a step that was being made when the key came still arrives
    page.until(lambda: page.page.text_content("#playpause") == "Play")


def test_rewind_and_another_future(page: Page) -> None:
    page.mode("Policy")
    pictures = [page.picture()]
    for _ in range(6):
        page.step()
        pictures.append(page.picture())
    page.page.click("#stepback")
    page.at(5)
    assert page.picture() == pictures[5]
    page.page.fill("#timeline", "2")
    page.at(2)
    assert page.picture() == pictures[2]
    assert page.page.text_content("#where") == "2 / 6"
    page.step()  # the same future again: same seed, same policy
    assert page.page.text_content("#where") == "3 / 3"
    assert page.picture() == pictures[3]
    page.page.keyboard.press("r")
    page.at(0)
    assert page.picture() == pictures[0]
    page.page.keyboard.press("n")
    page.step(3)
    assert page.page.text_content("#where") == "3 / 3"


def test_editing_a_latent_changes_the_picture(page: Page) -> None:
    page.step()
    before = page.picture()
    box = page.page.locator("#latents").bounding_box()
    latents = page.page.get_attribute("#latents", "aria-label").split()[-16:]
    category = 0 if latents[3] != "0" else 1
    page.page.mouse.click(box["x"] + box["width"] * 3.5 / 16, box["y"] + box["height"] * (category + 0.5) / 16)
    page.until(lambda: page.page.get_attribute("#latents", "aria-label").split()[-13] == str(category))
    assert page.picture() != before
    assert page.t() == 1
    assert f"variable 4, category {category + 1}" in page.page.text_content("#latents-read")


def test_latents_by_keyboard(page: Page) -> None:
    before = page.picture()
    page.page.focus("#latents")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.page.keyboard.press(key)
    assert "variable 2, category 3" in page.page.text_content("#latents-read")
    assert page.t() == 0  # the arrows were the grid's, not the game's
    page.page.keyboard.press("Enter")
    page.until(lambda: page.page.get_attribute("#latents", "aria-label").split()[-15] == "2")
    page.page.keyboard.press("ArrowUp")
    page.page.keyboard.press("Enter")
    page.until(lambda: page.page.get_attribute("#latents", "aria-label").split()[-15] == "1")
    assert page.picture() != before


def test_inside_the_model(page: Page) -> None:
    """Plots, probabilities and attention go with the steps, and say so to who cannot see them."""

    def told() -> list[str]:
        labels = "all => all.filter(e => e.checkVisibility()).map(e => e.getAttribute('aria-label'))"
        return [str(label) for label in page.page.eval_on_selector_all(".inside canvas", labels)]

    page.mode("Policy")
    for t in (1, 2):
        page.step()
        page.until(lambda t=t: f"step {t}:" in told()[0])  # type: ignore[misc]
        reward, discount, value, latents, attention = told()
        for name, label in (("reward", reward), ("discount", discount), ("value", value)):
            assert re.fullmatch(rf"Predicted {name}, step {t}: -?\d+\.\d{{3}}", label)
        assert latents.startswith(f"Latent state at step {t}: categories ")
        shares = re.fullmatch(
            rf"Attention of 2 layers at step {t}: states (\d+) % · actions (\d+) % · .* (\d+) %", attention
        )
        assert shares
        assert 95 <= sum(map(int, shares.groups())) <= 105


def test_temperatures(page: Page) -> None:
    """At 0 nothing is left to chance: another future is the same one. At 2 it is not."""

    def future() -> list[str]:
        page.page.keyboard.press("r")
        page.at(0)
        page.page.keyboard.press("n")
        pictures = []
        for _ in range(6):
            page.step()
            pictures.append(page.picture())
        return pictures

    page.mode("Policy")
    for name in ("temperature", "policy-temperature"):
        page.page.fill(f"#{name}", "0")
    cold = future()
    assert future() == cold
    for name in ("temperature", "policy-temperature"):
        page.page.fill(f"#{name}", "2")
    assert page.page.text_content("label:has(#temperature) output") == "2.00"
    assert future() != future()


def test_compare_with_reality(page: Page) -> None:
    page.page.click("#real")
    page.page.wait_for_selector(".panel.real")
    page.mode("You")
    page.page.focus("#panels")
    before = page.picture(1)
    for t in range(1, 8):
        page.page.keyboard.press("ArrowRight")
        page.at(t)
    assert page.page.locator(".panel").count() == 3
    assert page.picture(1) != before
    caption = page.page.text_content(".panel.apart figcaption")
    assert re.fullmatch(r"Difference[\d.]+ · (still together|decoder blurred|left at \d+)", caption)
    at_five = page.picture(1)
    page.page.keyboard.press(",")
    page.at(6)
    assert page.picture(1) != at_five
    assert page.page.text_content("#real") == "Compare anew"


def test_several_dreams_side_by_side(page: Page) -> None:
    page.step(2)
    page.page.click("#rows label:has-text('4')")
    page.until(lambda: page.page.locator(".panel").count() == 4)
    page.mode("Policy")
    page.step(6)
    assert len({page.picture(i) for i in range(4)}) > 1
    page.page.click(".panel:nth-of-type(3) canvas")
    page.until(lambda: page.page.locator(".panel.focus figcaption b").text_content() == "Dream 3")
    page.page.focus(".panel:nth-of-type(2) canvas")
    page.page.keyboard.press("Enter")
    page.until(lambda: page.page.locator(".panel.focus figcaption b").text_content() == "Dream 2")


def test_the_film_strip_starts_a_dream(page: Page) -> None:
    page.page.wait_for_selector(".thumb")
    page.page.select_option("#strip-stride", "1")
    page.page.fill("#strip-at", "40")
    page.page.wait_for_selector(".thumb[data-index='41']")
    assert page.page.locator(".thumb.begins").count() >= 1  # an episode begins at 39
    page.page.click(".thumb[data-index='41']")
    page.until(lambda: "from step 41 of the replay" in page.page.text_content("#status"))
    page.page.keyboard.press("ArrowRight")  # the arrows belong to the strip while it has the focus
    page.page.keyboard.press("Enter")
    page.until(lambda: page.page.locator(".thumb[aria-selected=true]").count() == 1)


def test_a_link_reproduces_the_dream(browser: Any, served: Served, page: Page) -> None:
    page.mode("Policy")
    page.step(8)
    page.page.click("#link-open")
    page.page.wait_for_selector("#link-dialog[open]")
    link = page.page.input_value("#link-text")
    assert link.startswith(f"http://{served.address}/#run=tiny&dream=")
    other = Page(browser, served.address, path=link.partition(served.address)[2]).ready()
    other.at(8)
    other.until(lambda: other.page.text_content("#playpause") == "Play")
    assert other.picture() == page.picture()
    other.close()


def test_a_damaged_link_says_so(browser: Any, served: Served) -> None:
    page = Page(browser, served.address, path="/#dream=nonsense").ready()
    page.until(lambda: "damaged" in page.page.text_content("#status") or page.t() == 0)
    page.step()
    page.close()


def test_films_are_saved(page: Page) -> None:
    page.step(3)
    page.page.click("#film-open")
    page.page.click("#film-dialog label:has-text('GIF')")
    with page.page.expect_download() as download:
        page.page.click("#film-save")
    assert Path(download.value.path()).read_bytes().startswith(b"GIF89a")
    assert download.value.suggested_filename == "dream.gif"


def test_help_and_shortcuts(page: Page) -> None:
    page.page.keyboard.press("?")
    page.page.wait_for_selector("#help-dialog[open]")
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("#help-dialog", state="hidden")
    page.page.keyboard.press(".")
    page.at(1)
    page.page.keyboard.press(",")
    page.at(0)
    page.page.keyboard.press("m")
    page.until(lambda: page.page.is_checked("#mode input[value=you]"))


@pytest.mark.parametrize("name", ["help", "film"])  # the focus is on a button, in a number
def test_a_key_right_after_a_dialog(page: Page, name: str) -> None:
    """Until the browser draws, a dialog closed just now has the focus; a key is the dream's all the same."""
    close_and_press = """(name) => {
        const dialog = document.getElementById(`${name}-dialog`);
        dialog.showModal();
        dialog.close();
        const focused = document.activeElement;
        focused.dispatchEvent(new KeyboardEvent("keydown", { key: ".", code: "Period", bubbles: true }));
        return dialog.contains(focused);
    }"""
    assert page.page.evaluate(close_and_press, name)
    page.at(1)


def test_the_training_page(page: Page) -> None:
    page.page.click("#tab-training")
    page.page.wait_for_selector(".chart canvas")
    page.until(lambda: page.page.locator(".chart").count() >= 4)
    page.until(lambda: "newest" in (page.page.get_attribute(".chart canvas", "aria-label") or ""))
    count = page.page.locator(".chart").count()
    page.page.fill("#key-filter", "grad/")
    assert page.page.locator("#keys input").count() >= 2
    page.page.locator("#keys input").first.check()
    page.until(lambda: page.page.locator(".chart").count() == count + 1)
    assert "mean of 2 episodes" in page.page.text_content("#evaluation")
    page.until(lambda: "over 160 entries" in page.page.text_content("#visits-note"))
    page.until(lambda: page.page.locator("#film-list button").count() >= 4)
    page.page.locator("#film-list button").nth(1).click()
    page.until(lambda: page.page.evaluate("document.getElementById('film-canvas').width") == 16)
    page.page.click("#tab-options")
    page.page.fill("#option-filter", "discount")
    visible = page.page.eval_on_selector_all("#option-rows tr", "all => all.filter(r => !r.hidden).length")
    assert 1 <= visible < 10
    page.page.keyboard.press("Shift+Tab")
    page.page.focus("#tab-training")
    page.page.keyboard.press("ArrowLeft")
    page.page.wait_for_selector("#page-dream:not([hidden])")


def test_curves_of_several_runs(browser: Any, run: Run, run_path: Path, tmp_path: Path) -> None:
    """A run that pretrains has curves over time, since its interactions stand still; another one is laid over it."""
    shutil.copytree(run_path, tmp_path / "young")
    records = [{"interactions": 120, "loss/decoder": 9.0 - i, "time/elapsed": 60.0 * i} for i in range(1, 5)]
    (tmp_path / "young" / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with serving([Run(tmp_path / "young", device="cpu"), run]) as (_, address):
        page = Page(browser, address).ready()
        page.page.click("#tab-training")
        label = "figure:has(h3:has-text('loss/decoder')) canvas"
        page.until(lambda: page.page.locator(label).count())
        page.until(
            lambda: page.page.get_attribute(label, "aria-label") == "Curve of loss/decoder over minutes; newest: 5"
        )
        page.page.locator("#runs input").nth(1).hover()
        page.page.mouse.down()
        with page.page.expect_request("**/curves?*"):
            pass  # the page looks at the runs again in the middle of the click
        page.page.mouse.up()
        newest = r"Curve of loss/decoder over interactions; newest: 5, [\d.e-]+"
        page.until(lambda: re.fullmatch(newest, page.page.get_attribute(label, "aria-label") or ""))
        page.close()


@contextmanager
def training(path: Path) -> Iterator[None]:
    """A training that goes on in another process for as long as the block."""
    command = [sys.executable, "-m", "twm.cli", "train", "--preset", "tiny", "--out", str(path), "--quiet"]
    options = {"interactions": 100_000, "prefill": 120, "samples": 4_000_000, "pretrain-samples": 3_000}
    options |= {"eval-every": 0, "log-every": 10, "checkpoint-every": 20}
    command += [f"--train.{name}={value}" for name, value in options.items()]
    with subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow
def test_a_running_training(browser: Any, tmp_path: Path) -> None:
    """Opened before the first checkpoint: the dream begins by itself, curves grow, new checkpoints are offered."""
    path = tmp_path / "running"
    with training(path):
        until(lambda: (path / "config.json").is_file(), 120)
        with serving([Run(path, device="cpu")]) as (_, address):
            page = Page(browser, address).ready()
            page.page.click("#tab-training")
            page.page.wait_for_selector(".chart canvas")
            seen = set[str]()
            page.until(lambda: seen.add(page.page.text_content("#runs small")) or len(seen) >= 3)
            labels = set[str]()
            page.until(lambda: labels.add(page.page.text_content(".chart h3 span")) or len(labels) >= 2)
            page.page.click("#tab-dream")
            page.page.wait_for_selector("#update:not([hidden])")
            before = page.page.text_content("#status")
            page.page.click("#update")
            page.until(lambda: page.page.text_content("#status") != before)
            page.step()
            page.screenshot("running")
            page.close()
