"""Child processes: deaf to signals meant for their parent, and ended by it whatever state they are in."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from twm import child

SLOW_TO_IMPORT = """
from twm import child
requests, replies = child.pipes()
replies.write(b"importing\\n")
replies.flush()
requests.readline()  # the parent says when to go on

def main():
    replies.write(b"serving\\n")
    replies.flush()
    requests.read()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_whole_group_are_the_parents(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start: also while it imports what it needs."""
    (tmp_path / "slow_to_import.py").write_text(SLOW_TO_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    process = child.start("slow_to_import")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"importing\n"
    process.send_signal(number)
    process.stdin.write(b"go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"serving\n"
    child.stop(process)
    assert process.returncode == 0


def test_one_that_died_with_a_request_under_way_is_cleared_away() -> None:
    process = child.start("twm.envs.worker")
    assert process.stdin is not None
    process.kill()
    process.wait()
    process.stdin.write(b"a request")  # kept in the buffer: nobody reads it
    child.stop(process)
    assert process.returncode == -signal.SIGKILL
    assert process.stdin.closed


def test_a_byte_is_waited_for() -> None:
    """Longer than one stays awake for it, too."""
    read, write = os.pipe()

    def send() -> None:
        time.sleep(3 * child.PATIENCE)
        os.write(write, b"a line\nb")
        time.sleep(3 * child.PATIENCE)
        os.close(write)

    thread = threading.Thread(target=send)
    thread.start()
    with open(read, "rb") as stream:
        assert child.read_byte(stream) == b"a"
        assert stream.readline() == b" line\n"
        assert child.read_byte(stream) == b"b"  # was read ahead: nothing is left in the pipe
        assert child.read_byte(stream) == b""
    thread.join()


def test_what_one_process_writes_the_other_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import mmap, sys", "def main(): mmap.mmap(int(sys.stdin.readline()), 5)[:] = b'hello'"]
    (tmp_path / "writes.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with child.shared_file() as file:
        os.ftruncate(file, 5)
        memory = mmap.mmap(file, 5)
        process = child.start("writes", pass_fds=[file])
        assert process.stdin is not None
        process.stdin.write(f"{file}\n".encode())
        process.stdin.flush()
        assert process.wait() == 0
    child.stop(process)
    assert memory[:] == b"hello"
