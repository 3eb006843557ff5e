"""A real, tiny run and a real server for the studio's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from studio.browsing import ARGUMENTS, Page
from studio.serving import Served, serving, tiny_config

from twm.studio.dream import Model
from twm.studio.library import Run
from twm.studio.limits import Limits
from twm.train.loop import train


@pytest.fixture(scope="session")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training of the tiny preset on Catch. Read only: all tests share it."""
    path = tmp_path_factory.mktemp("studio") / "tiny"
    train(tiny_config(), path, quiet=True)
    return path


@pytest.fixture(scope="session")
def run(run_path: Path) -> Run:
    run = Run(run_path, device="cpu")
    run.refresh()
    return run


@pytest.fixture(scope="session")
def model(run: Run) -> Model:
    model = run.model()
    assert model is not None
    return model


@pytest.fixture(scope="session")
def served(run: Run) -> Iterator[Served]:
    """One server for all tests that need no limits of their own; generous, since tests are quicker than people."""
    limits = Limits(messages_per_second=1e6, message_burst=10**6, requests_per_second=1e6, request_burst=10**6)
    with serving([run], limits) as server:
        yield server


@pytest.fixture(scope="module")  # no longer: while it lives, its loop is in the way of asyncio.run
def browser(browser_path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Page]:
    page = Page(browser, served.address).ready()
    yield page
    page.close()
