"""A page of the studio in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studio.serving import until

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
PICTURE = "(i = 0) => document.querySelectorAll('.panel canvas')[i].toDataURL()"


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
