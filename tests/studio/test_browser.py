"""The page in a real browser, on a real server with a real (tiny) checkpoint, by keyboard and mouse.

``TWM_SCREENSHOTS=DIR`` keeps the pictures that are taken.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from studio.serving import Served, serving, until

from twm.studio.library import Run

pytestmark = pytest.mark.browser

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
PICTURE = "(i = 0) => document.querySelectorAll('.panel canvas')[i].toDataURL()"


@pytest.fixture(scope="module")
def browser(browser_path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=ARGUMENTS)
        yield browser
        browser.close()


class Page:
    """A page of the studio with what the tests ask of it. The page forbids eval, so waiting is done from here."""

    def __init__(self, browser: Any, address: str, *, path: str = "/", **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(re.sub(r"^\w+://([^/]*).*", r"\1", request.url)))
        self.address = address
        self.page.goto(f"http://{address}{path}")

    def ready(self) -> Page:
        self.page.wait_for_selector(".panel")
        return self

    def until(self, condition: Callable[[], object]) -> None:
        def met() -> object:
            self.page.wait_for_timeout(20)  # lets the browser's events in
            return condition()

        until(met, 60)

    def t(self) -> int:
        return int(self.page.text_content("#where").split("/")[0].replace(",", ""))

    def picture(self, index: int = 0) -> str:
        return str(self.page.evaluate(PICTURE, index))

    def at(self, t: int) -> None:
        self.until(lambda: self.t() == t)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            t = self.t()
            self.page.click("#stepon")
            self.at(t + 1)

    def taken(self) -> str | None:
        names = self.page.eval_on_selector_all("#policy .taken .name", "all => all.map(e => e.textContent)")
        return str(names[0]) if names else None

    def mode(self, name: str) -> None:
        self.page.click(f"#mode label:has-text('{name}')")

    def screenshot(self, name: str) -> None:
        directory = os.environ.get("TWM_SCREENSHOTS")
        if directory:
            self.page.screenshot(path=Path(directory) / f"{name}.png")

    def close(self) -> None:
        assert self.problems == []
        assert self.hosts == {self.address}  # nothing from elsewhere
        self.context.close()


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Page]:
    page = Page(browser, served.address).ready()
    yield page
    page.close()


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
    page.until(lambda: page.page.text_content("#playpause") == "Play")
    t = page.t()
    page.page.wait_for_timeout(300)
    assert page.t() == t


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
    assert re.fullmatch(r"Difference[\d.]+ · (still together|decoder too blurred|left at \d+)", caption)
    at_five = page.picture(1)
    page.page.keyboard.press(",")
    page.at(6)
    assert page.picture(1) != at_five
    assert page.page.get_attribute("#real", "aria-pressed") == "true"


def test_several_dreams_side_by_side(page: Page) -> None:
    page.step(2)
    page.page.click("#rows label:has-text('4')")
    page.until(lambda: page.page.locator(".panel").count() == 4)
    page.mode("Policy")
    page.step(6)
    assert len({page.picture(i) for i in range(4)}) > 1
    page.page.click(".panel:nth-of-type(3) canvas")
    page.until(lambda: page.page.locator(".panel.focus figcaption b").text_content() == "Dream 3")


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


# --------------------------------------------------------------------------------------------------
# Looks


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (900, 700)])
def test_it_fits_and_is_readable(browser: Any, served: Served, theme: str, size: tuple[int, int]) -> None:
    """One screen at 1280 x 800; never wider than the window; colours with enough contrast; everything has a name."""
    width, height = size
    page = Page(browser, served.address, viewport={"width": width, "height": height}, color_scheme=theme).ready()
    page.page.click("#real")
    page.page.wait_for_selector(".panel.real")
    page.mode("Policy")
    page.step(6)
    assert page.page.evaluate("document.documentElement.dataset.theme") == theme
    for tab in ("dream", "training"):
        page.page.click(f"#tab-{tab}")
        page.page.wait_for_timeout(400)
        page.screenshot(f"{tab}-{width}x{height}-{theme}")
        scroll = page.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        assert scroll[0] <= width
        if height == 800:
            assert scroll[1] <= height
            assert page.page.evaluate(CUT_OFF, f"page-{tab}") == []
        assert page.page.evaluate(NAMELESS) == []
    assert page.page.evaluate(CONTRASTS) == []
    page.close()


def test_readable_at_200_percent(browser: Any, served: Served) -> None:
    """A window of 1280 x 800 at 200 % is one of 640 x 400: it scrolls, but only downwards."""
    options = {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2}
    page = Page(browser, served.address, **options).ready()
    for tab in ("dream", "training"):
        page.page.click(f"#tab-{tab}")
        page.page.wait_for_timeout(300)
        page.screenshot(f"{tab}-200-percent")
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 640
    page.close()


def test_the_theme_can_be_chosen(page: Page) -> None:
    themes = []
    for _ in range(3):
        page.page.click("#theme")
        themes.append(page.page.evaluate("document.documentElement.dataset.theme"))
    assert set(themes) == {"light", "dark"}


CUT_OFF = """(id) => {
  // Buttons, labels and pictures that reach beyond the window, or beyond a box that does not scroll.
  const out = [];
  for (const e of document.getElementById(id).querySelectorAll("button, label, canvas, h2, p, select")) {
    if (e.closest(".scroll, .thumbs, .bars, .charts") || !e.checkVisibility()) continue;
    const r = e.getBoundingClientRect(), card = e.closest(".card").getBoundingClientRect();
    const inside = r.left >= card.left - 1 && r.right <= card.right + 1 && r.bottom <= card.bottom + 1;
    if (!inside || r.bottom > innerHeight + 1) out.push(e.id || e.textContent || e.tagName);
  }
  return out;
}"""

NAMELESS = """() => [...document.querySelectorAll("button, a, input, select, canvas, img")].filter((e) => {
  if (!e.checkVisibility()) return false;
  if (e.tagName === "IMG") return e.getAttribute("alt") === null;
  if (e.getAttribute("aria-hidden") === "true") return false;
  const name = e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.[0]?.textContent.trim();
  return !name;
}).map((e) => e.outerHTML)"""

CONTRASTS = """() => {
  // WCAG: the ratio of luminances of text and ground must be at least 4.5.
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue("--" + name).trim();
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = [["text", "card"], ["text", "raised"], ["text", "ground"], ["muted", "card"], ["muted", "raised"],
    ["on-accent", "accent"], ["dream", "card"], ["reality", "card"], ["apart", "card"], ["warn", "card"],
    ["card", "reality"]];
  return pairs.filter(([a, b]) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05) < 4.5;
  });
}"""
