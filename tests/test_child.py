"""Child processes: deaf to signals meant for their parent, and ended by it whatever state they are in."""

from __future__ import annotations

import signal
import time

import pytest

from twm import child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_whole_group_are_the_parents(number: signal.Signals) -> None:
    process = child.start("twm.envs.worker")
    time.sleep(0.3)  # the interpreter is up, what it imports is not
    process.send_signal(number)
    with pytest.raises(child.subprocess.TimeoutExpired):
        process.wait(timeout=1)
    child.stop(process)
    assert process.returncode == 1  # no recipes came


def test_one_that_died_with_a_request_under_way_is_cleared_away() -> None:
    process = child.start("twm.envs.worker")
    assert process.stdin is not None
    process.kill()
    process.wait()
    process.stdin.write(b"a request")  # kept in the buffer: nobody reads it
    child.stop(process)
    assert process.returncode == -signal.SIGKILL
    assert process.stdin.closed
