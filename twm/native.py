"""Loops that PyTorch and NumPy have no call for, in C: compiled when first asked for, and done without where they
cannot be.

Each is a C file beside the Python that has the same in plain words; a test holds both equal. The machine's own
compiler builds it for the machine's own processor, once: the library is kept in the user's cache under a name made of
the source, the compiler and the processor. No compiler, no cache, a failed build: the plain version runs, and
``twm doctor`` says so. ``TWM_NATIVE=0`` does without all of them; ``TWM_NATIVE=-products,-tiles`` without that file
and the processor's tile registers, ``-halves`` with tiles of bfloat16 only, for comparing: to be set before a process
starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Werror=implicit-function-declaration")
SOURCES = tuple(sorted(Path(__file__).parent.rglob("*.c")))  # of the whole package
CPU = Path(__file__).with_name("cpu.c")
TILES, HALVES = "tiles", "halves"

_plain_only = False


@contextmanager
def plain_only() -> Iterator[None]:
    """Inside, everything goes the plain way: for comparing, and for counting operations."""
    global _plain_only
    before, _plain_only = _plain_only, True
    try:
        yield
    finally:
        _plain_only = before


def is_plain_only() -> bool:
    return _plain_only


def load(source: Path) -> ctypes.CDLL | None:
    """The library of a C file, or None where it cannot be had or is not wanted."""
    return None if _plain_only or _left_out(source.stem) else _load(source)


def _left_out(name: str) -> bool:
    asked = os.environ.get("TWM_NATIVE", "")
    return asked == "0" or name in _names(asked)


@functools.cache
def _names(asked: str) -> frozenset[str]:
    names = [name.strip() for name in asked.split(",")] if asked else []
    known = {TILES, HALVES, *(source.stem for source in SOURCES)}
    if wrong := [name for name in names if name[:1] != "-" or name[1:] not in known]:
        raise ValueError(
            f"TWM_NATIVE: expected 0 (no C files), or what to leave out, each after a minus and with commas between "
            f"them ({', '.join(sorted(known))}), got {', '.join(map(repr, wrong))}"
        )
    return frozenset(name[1:] for name in names)


@functools.cache
def _load(source: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(_built(source)))
    except (OSError, subprocess.SubprocessError, RuntimeError):  # the last: there is no home for a cache
        return None


def loaded() -> list[str]:
    """The names of the package's C files that run here."""
    return [source.stem for source in SOURCES if load(source)]


def missing() -> list[str]:
    """The names of those that are wanted and cannot be had."""
    return [source.stem for source in SOURCES if not _left_out(source.stem) and not load(source)]


@functools.cache
def tiles() -> bool:
    """Whether this process may use the processor's tile registers (AMX): Linux wants to be asked first."""
    if _left_out(TILES) or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    arch_prctl, permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, permission, tile_data) == 0


def halves() -> bool:
    """Whether the tile registers multiply float16, too: fewer products for the same precision (twm/nn/tiles.h)."""
    return tiles() and not _left_out(HALVES) and (cpu := load(CPU)) is not None and cpu.tile_halves() != 0


def compiler() -> list[str]:
    """The C compiler's command, none if there is none; ``CC`` names another one, with options if it has any."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError:  # an open quotation mark: no command either
        return []
    for program, *options in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if found := shutil.which(program):
            return [found, *options]
    return []


def cache() -> Path:
    """Where libraries are kept; ``XDG_CACHE_HOME`` moves it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twm"


def _built(source: Path) -> Path:
    if not (program := compiler()):
        raise OSError("there is no C compiler")
    command = [*program, *FLAGS]
    if source != CPU:  # which is asked for them
        command += [*(["-DTILES"] if tiles() else []), *(["-DHALVES"] if halves() else [])]
    text = b"\0".join(path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h"))))
    seen = os.stat(program[0])  # changes when the compiler is another version
    key = " ".join([*command, str(seen.st_size), str(seen.st_mtime_ns), _processor()])
    name = hashlib.sha256(text + b"\0" + key.encode()).hexdigest()
    library = cache() / f"{source.stem}-{name[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may build at once: each its own file, and whole when it gets its name.
        handle, temporary = tempfile.mkstemp(dir=library.parent, suffix=".so")
        os.close(handle)
        try:
            build = [*command, str(source), "-o", temporary, "-lm"]
            # Standard input may be a pipe with requests in it. A signal to the group is not meant for the compiler: the
            # process would go on without the file, and after a resume with it.
            subprocess.run(
                build,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                capture_output=True,
                check=True,
                timeout=120,
            )
            os.chmod(temporary, 0o755)  # a cache may be shared
            os.replace(temporary, library)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    return library


def _processor() -> str:
    """What ``-march=native`` depends on: a cache may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
