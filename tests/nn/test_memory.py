"""The allocator keeps what it has been given."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys
import torch
from twm.nn.memory import tune_allocator

if sys.argv[1] == "tuned":
    assert tune_allocator()
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x = torch.ones(1 << 22)
    y = x + torch.ones(1 << 23).sum()
    del x, y
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(argument: str) -> int:
    command = [sys.executable, "-c", PROGRAM, argument]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_memory_is_not_mapped_again_and_again() -> None:
    """The same tensors over and over, 64 MB a step: the pages of few steps of twenty are new, not those of each."""
    assert page_faults("tuned") < page_faults("default") / 4
