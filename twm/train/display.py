"""What a person sees while a run goes on: a live line in a terminal, a plain line now and then elsewhere.

Everything goes to stderr, so that stdout stays free for results. There is no thread: the display is drawn
from :meth:`Display.advance`.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

Fact = int | float | str | None


class Display:
    """Progress of one phase at a time: ``phase("prefill", 5000)``, ``advance(1, score=3.0)`` ..., ``close()``.

    Facts given to ``advance`` stay until they are given again, and a new phase keeps them. ``quiet`` shows no
    progress; notes, which carry warnings, still appear.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        live = not quiet and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._bar: _Bar | None = _Bar(self._stream) if live else None
        self._every = 0.2 if live else every  # seconds between drawings
        self._drawn = clock()
        self._stale = False  # something happened since it was drawn
        self._progress: _Progress | None = None
        self._facts: dict[str, Fact] = {}
        self._notes: deque[str] = deque()
        self._writing = False

    def phase(self, name: str, total: int | None, *, unit: str = "interactions", start: int = 0) -> None:
        """Begin a phase of ``total`` steps (None: unknown), ``start`` of which were done before (on resume)."""
        self._finish()
        self._progress = _Progress(name, total, unit, start, self._clock())
        self._stale = True
        if self._bar is not None:
            self._bar.begin(name, total)
            self._draw(force=True)

    def advance(self, n: int = 1, **facts: Fact) -> None:
        """``n`` more steps are done; ``facts`` are shown beside them (updates, loss, score, ...)."""
        self._facts.update(facts)
        self._stale = True
        if self._progress is not None:
            self._progress.advance(n, self._clock())
        self._draw()

    def note(self, text: str) -> None:
        """A line that stays: a warning, an evaluation's result, how to resume. May be called in a signal handler."""
        self._notes.append(text)
        self._write(None)

    def close(self) -> None:
        """End the last phase and leave the terminal as it was. May be called again."""
        self._finish()
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self) -> None:
        self._draw(force=self._stale)
        self._progress = None

    def _draw(self, force: bool = False) -> None:
        now = self._clock()
        due = force or now - self._drawn >= self._every
        if due and self._progress is not None and not self._quiet:
            self._drawn = now
            self._stale = False
            self._write(self._progress.parts(now, self._facts))
        elif self._notes:
            self._write(None)

    def _write(self, parts: list[str] | None) -> None:
        """The only place that writes: notes first, then the progress. A signal handler may interrupt it anywhere, and
        streams refuse to be entered twice; its note then waits for the line that is being written."""
        if self._writing:
            return
        self._writing = True
        try:
            while self._notes:
                self._show(self._notes.popleft())
            if parts is not None and self._progress is not None:
                if self._bar is not None:
                    self._bar.draw(self._progress.count, "  ".join(parts))
                else:
                    self._show(f"{self._progress.name}: " + ", ".join(parts))
            while self._notes:
                self._show(self._notes.popleft())
        finally:
            self._writing = False

    def _show(self, line: str) -> None:
        if self._bar is not None:
            self._bar.note(line)
        else:
            print(line, file=self._stream, flush=True)


class _Progress:
    """Counts of a phase, and its speed over the last half minute."""

    WINDOW = 30.0

    def __init__(self, name: str, total: int | None, unit: str, start: int, now: float) -> None:
        self.name, self.total, self.unit, self.count = name, total, unit, start
        self._began = now
        self._marks: deque[tuple[float, int]] = deque([(now, start)])

    def advance(self, n: int, now: float) -> None:
        self.count += n
        if now - self._marks[-1][0] >= 1.0:  # one mark a second is enough
            self._marks.append((now, self.count))
            while len(self._marks) > 2 and now - self._marks[0][0] > self.WINDOW:
                self._marks.popleft()

    def parts(self, now: float, facts: dict[str, Fact]) -> list[str]:
        """Count, facts, speed, elapsed and left: the pieces of one line."""
        if self.total is None:
            count = f"{self.count:,} {self.unit}"
        else:
            share = f" ({self.count / self.total:.0%})" if self.total else ""
            count = f"{self.count:,}/{self.total:,} {self.unit}{share}"
        parts = [count]
        parts += [f"{key.replace('_', ' ')} {_text(value)}" for key, value in facts.items() if value is not None]
        since, before = self._marks[0]
        speed = (self.count - before) / (now - since) if now > since else 0.0
        if speed > 0:
            parts.append(f"{speed:.3g}/s")
        parts.append(f"elapsed {_clock_text(now - self._began)}")
        if speed > 0 and self.total is not None and self.count < self.total:
            parts.append(f"left {_clock_text((self.total - self.count) / speed)}")
        return parts


def _text(value: Fact) -> str:
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"
    return str(value)


def _clock_text(seconds: float) -> str:
    """3725 seconds as 1:02:05."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


class _Bar:
    """The live line. Rich is loaded here and nowhere else, and only for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(file=stream)
        self._rich = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
        )
        self._task: Any = None

    def begin(self, name: str, total: int | None) -> None:
        if self._task is None:
            self._rich.start()
        else:
            self._rich.stop_task(self._task)  # finished phases stay above as a record
        self._task = self._rich.add_task(name, total=total, facts="")

    def draw(self, count: int, facts: str) -> None:
        self._rich.update(self._task, completed=count, facts=facts, refresh=True)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._rich.stop()
