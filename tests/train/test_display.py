from __future__ import annotations

import io
import os
import re
import select
import subprocess
import sys

import pytest

from twm.train.display import Display


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_every_ten_seconds() -> None:
    clock, out = Clock(), io.StringIO()
    with Display(stream=out, clock=clock) as display:
        display.phase("training", 1000, start=200)
        for step in range(1, 26):  # 25 seconds, 4 interactions a second
            clock.now = float(step)
            display.advance(4, updates=step * 2, loss=12.3456, score=None if step < 15 else 7.0)
        display.note("evaluation: 7.0")
    assert out.getvalue().splitlines() == [
        "training: 240/1,000 interactions (24%), updates 20, loss 12.346, 4/s, elapsed 0:00:10, left 0:03:10",
        "training: 280/1,000 interactions (28%), updates 40, loss 12.346, score 7.000, 4/s, "
        "elapsed 0:00:20, left 0:03:00",
        "evaluation: 7.0",
        "training: 300/1,000 interactions (30%), updates 50, loss 12.346, score 7.000, 4/s, "
        "elapsed 0:00:25, left 0:02:55",
    ]


def test_each_phase_ends_with_a_line_and_has_its_own_unit_and_clock() -> None:
    clock, out = Clock(), io.StringIO()
    display = Display(stream=out, clock=clock)
    display.phase("prefill", 10)
    clock.now = 2.0
    display.advance(10)
    display.phase("pretraining", None, unit="updates")
    clock.now = 3725.0 + 2.0
    display.advance(5000, loss=1e-6)
    display.close()
    display.close()
    assert out.getvalue().splitlines() == [
        "prefill: 10/10 interactions (100%), 5/s, elapsed 0:00:02",
        "pretraining: 5,000 updates, loss 1e-06, 1.34/s, elapsed 1:02:05",
    ]


def test_speed_is_that_of_the_last_half_minute() -> None:
    """100 a second for a minute, then 1 a second: what is left must follow the present speed."""
    clock, out = Clock(), io.StringIO()
    display = Display(stream=out, clock=clock, every=1e9)
    display.phase("training", 10_000)
    for step in range(1, 121):
        clock.now = float(step)
        display.advance(100 if step <= 60 else 1)
    display.close()
    assert out.getvalue() == ("training: 6,060/10,000 interactions (61%), 1/s, elapsed 0:02:00, left 1:05:40\n")


def test_a_note_from_a_signal_handler_waits_for_the_line_being_written() -> None:
    class Interrupted(io.StringIO):
        """A stream that is interrupted in the middle of its first line, as by SIGINT."""

        inside = False

        def write(self, text: str) -> int:
            assert not self.inside, "entered twice"
            if text.startswith("training"):
                self.inside = True
                display.note("stopping")
                self.inside = False
            return super().write(text)

    clock, out = Clock(), Interrupted()
    display = Display(stream=out, clock=clock)
    display.phase("training", 100)
    clock.now = 10.0
    display.advance(10)
    assert out.getvalue() == ("training: 10/100 interactions (10%), 1/s, elapsed 0:00:10, left 0:01:30\nstopping\n")


def test_quiet_shows_notes_only(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(quiet=True) as display:
        display.phase("training", 10)
        display.advance(10, loss=1.0)
        display.note("checkpoint step-000000003 is damaged")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "checkpoint step-000000003 is damaged\n")


def test_an_empty_phase_and_advance_before_any_phase() -> None:
    out = io.StringIO()
    with Display(stream=out, clock=Clock()) as display:
        display.advance(1, score=1)
        display.phase("training", 0)
    assert out.getvalue() == "training: 0/0 interactions, score 1, elapsed 0:00:00\n"


def test_live_in_a_real_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    master, slave = os.openpty()
    clock = Clock()
    with open(slave, "w") as terminal:
        display = Display(stream=terminal, clock=clock)
        display.phase("prefill", 100)
        clock.now = 10.0
        display.advance(100, score=3)
        display.phase("training", 1000)
        print("result", flush=True)  # stdout is left alone
        clock.now = 20.0
        display.advance(250, loss=1.5)
        display.note("[saved]")
        display.close()
        terminal.flush()
        written = b""
        while select.select([master], [], [], 0.5)[0]:  # a read gives 4 KiB at most
            written += os.read(master, 1 << 16)
        shown = written.decode()
    os.close(master)
    assert capsys.readouterr().out == "result\n"
    assert "\x1b[?25l" in shown
    assert "\x1b[?25h" in shown, "the cursor must come back"
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "100/100 interactions (100%)  score 3  10/s  elapsed 0:00:10" in text
    assert "250/1,000 interactions (25%)  score 3  loss 1.500  25/s  elapsed 0:00:10  left 0:00:30" in text
    assert "[saved]" in text
    assert text.index("[saved]") < text.rindex("250/1,000"), "notes stand above the bar"


def test_rich_is_not_loaded_without_a_terminal() -> None:
    code = (
        "import sys, twm.train.display as d; d.Display().close(); print('rich' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
