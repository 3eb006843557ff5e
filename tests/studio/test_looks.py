"""How the page looks: it fits, it is readable, it can be used by keyboard.

``TWM_SCREENSHOTS=DIR`` keeps the pictures that are taken.
"""

from __future__ import annotations

from typing import Any

import pytest
from studio.browsing import Page
from studio.serving import Served

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("theme", "width", "height"), [("light", 1280, 800), ("dark", 1280, 800), ("dark", 1920, 1080), ("light", 900, 700)]
)
def test_it_fits_and_is_readable(browser: Any, served: Served, theme: str, width: int, height: int) -> None:
    """One screen from 1280 x 800 on; never wider than the window; enough contrast; everything has a name."""
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
        if height >= 800:
            assert scroll[1] <= height
            assert page.page.evaluate(CUT_OFF, f"page-{tab}") == []
        assert page.page.evaluate(NAMELESS) == []
    assert page.page.evaluate(CONTRASTS) == []
    page.close()


@pytest.mark.parametrize(("width", "height", "scale"), [(640, 400, 2), (420, 900, 1)])
def test_readable_at_200_percent_and_on_a_telephone(
    browser: Any, served: Served, width: int, height: int, scale: int
) -> None:
    """A window of 1280 x 800 at 200 % is one of 640 x 400: it scrolls, but only downwards."""
    options = {"viewport": {"width": width, "height": height}, "device_scale_factor": scale}
    page = Page(browser, served.address, **options).ready()
    for tab in ("dream", "training"):
        page.page.click(f"#tab-{tab}")
        page.page.wait_for_timeout(300)
        page.screenshot(f"{tab}-{width}x{height}-{scale}")
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


@pytest.mark.parametrize("beside", [False, True])
def test_captions_are_whole(page: Page, beside: bool) -> None:
    """Below four small pictures, and those of reality, at 1280 x 800, with words as long as they get."""
    page.page.click("#rows label:has-text('4')")
    page.until(lambda: page.page.locator(".panel").count() == 4)
    if beside:
        page.page.click("#real")
        page.page.wait_for_selector(".panel.real")
    page.step()
    longest = {".panel:not(.apart) .numbers > :last-child": "-1.88", ".apart .numbers > :last-child": "together"}
    for selector, text in longest.items():
        page.page.eval_on_selector_all(selector, "(all, text) => all.forEach(e => (e.textContent = text))", text)
    page.page.eval_on_selector_all(".panel:not(.apart) .over", "all => all.forEach(e => (e.textContent = 'over 188'))")
    clipped = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    assert page.page.eval_on_selector_all("figcaption, .numbers", clipped) == []


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Page) -> None:
    page.page.wait_for_selector(".thumb")
    page.page.evaluate("document.activeElement.blur()")
    reached: list[str] = []
    while len(reached) < 60 and "attention" not in reached:
        page.page.keyboard.press("Tab")
        name, shown = page.page.evaluate(FOCUS)
        if name == "BODY":
            break
        assert shown, f"{name} has the focus and does not show it"
        reached.append(name)
    expected = ["tab-dream", "run", "theme", "help", "panels", "timeline", "playpause", "stepon", "again", "reseed"]
    expected += ["film-open", "link-open", "mode", "rows", "fps", "temperature", "policy-temperature", "strip-at"]
    expected += ["strip-stride", "thumb", "real-seed", "real-steps", "real", "latents"]
    assert set(expected) - set(reached) == set()


def test_the_theme_can_be_chosen(page: Page) -> None:
    themes = []
    for _ in range(3):
        page.page.click("#theme")
        themes.append(page.page.evaluate("document.documentElement.dataset.theme"))
    assert set(themes) == {"light", "dark"}


FOCUS = """() => {
  const e = document.activeElement;
  const shown = getComputedStyle(e.matches("[type=radio]") ? e.nextElementSibling : e);
  const outlined = shown.outlineStyle !== "none" && parseFloat(shown.outlineWidth) > 0;
  return [e.id || e.name || (e.matches(".thumb") ? "thumb" : e.tagName), outlined];
}"""

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
