"""What this machine offers to training, what is missing, and the command that installs it.

Meant for the first look at a new machine and the first line of a bug report, so it must work where things are
broken: every part is looked at on its own, and what cannot be found is reported as missing.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from twm import native
from twm.lab.scores import GAMES
from twm.nn import products
from twm.train.rundir import machine

EXTRAS: Mapping[str, str] = {
    "atari": "the Atari games",
    "studio": "twm studio, the dream in a browser",
    "cluster": "twm sweep, many runs on Ray",
    "export": "twm export, the policy as ONNX",
    "track": "TensorBoard and Weights & Biases",
    "dev": "tests, linters, documentation",
}
"""What each optional part of the package is for; which packages it needs is read from the installed metadata."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def examine() -> dict[str, Any]:
    """Everything :func:`describe` shows, as plain values."""
    facts = machine()
    return {
        **{key: facts[key] for key in ("twm", "commit", "python", "os")},
        "torch": _torch(),
        "devices": _devices(facts["cpu"]),
        "threads": {"cores": facts["usable_cores"], "torch": facts["threads"]},
        "games": _games(),
        "optional": {extra: _optional(extra) for extra in EXTRAS},
        "native": _native(),
        "compiler": _compiler(),
        "browser": find_browser(),
    }


def find_browser() -> str | None:
    """The Chromium that the studio's tests drive; ``TWM_BROWSER`` names another one."""
    named = os.environ.get("TWM_BROWSER")
    return next(filter(None, map(shutil.which, [named] if named else BROWSERS)), None)


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _devices(cpu: str) -> list[dict[str, Any]]:
    """CPU first, then what can be given to ``--device``."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    devices = [{"device": "cpu", "name": cpu, "memory_gb": _gigabytes(memory)}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {"device": f"cuda:{index}", "name": properties.name, "memory_gb": _gigabytes(properties.total_memory)}
        )
    if torch.backends.mps.is_available():
        devices.append({"device": "mps", "name": "Apple GPU", "memory_gb": None})
    return devices


def _gigabytes(size: int | None) -> float | None:
    return None if size is None else round(size / 2**30, 1)


def _games() -> dict[str, Any]:
    """Which of the 26 games of the Atari 100k benchmark have their ROM at hand."""
    try:
        from ale_py import roms
    except ImportError:
        return {"found": 0, "benchmark": len(GAMES), "missing": list(GAMES)}
    known = {rom.replace("_", "") for rom in roms.get_all_rom_ids()}
    missing = [game for game in GAMES if game.lower() not in known]
    return {"found": len(GAMES) - len(missing), "benchmark": len(GAMES), "missing": missing}


def _optional(extra: str) -> dict[str, Any]:
    missing = [package for package in _requirements(extra) if not _is_installed(package)]
    return {"installed": not missing, "missing": missing, "install": install_command(extra)}


def _requirements(extra: str) -> list[str]:
    """Packages that an extra names in the installed metadata, e.g. ``ray>=2.40; extra == "cluster"``."""
    try:
        lines = metadata.requires("twm") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return [f"twm[{extra}]"]
    pattern = re.compile(rf"""^([A-Za-z0-9._-]+).*;.*extra == ['"]{extra}['"]""")
    return [match[1] for match in map(pattern.match, lines) if match]


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def install_command(extra: str) -> str:
    """How to add an optional part to this installation: from the checkout it came from, or by name."""
    checkout = _checkout()
    if checkout is None:
        return f"pip install 'twm[{extra}]'"
    return f"cd {checkout} && {sys.executable} -m pip install -c constraints.txt -e '.[{extra}]'"


def _checkout() -> Path | None:
    """The directory of an editable installation."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "constraints.txt").is_file() else None


def _native() -> dict[str, Any]:
    """Which of the package's C files run, and the compiler that builds them."""
    compiler = " ".join(native.compiler()) or None
    loaded = native.loaded()
    return {"compiler": compiler, "loaded": loaded, "missing": native.missing(), "products": products.unit()}


def _compiler() -> str | None:
    """The C++ compiler that ``--compile`` needs on CPU."""
    named = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, [named] if named else ["g++", "clang++"])), None)


# --------------------------------------------------------------------------------------------------
# For people


def describe(found: Mapping[str, Any]) -> str:
    """The findings as lines to read."""
    torch, threads, games = found["torch"], found["threads"], found["games"]
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU build"
    lines = [
        _line("twm", f"{found['twm']}, Python {found['python']}, {found['os']}"),
        _line("torch", f"{torch['version']}, {build}, {torch['cpu_capability']}"),
        *(_line(device["device"], _device_text(device)) for device in found["devices"]),
        _line("threads", f"{threads['torch']} of {threads['cores']} cores"),
        _line("games", _games_text(games)),
        _line("native", _native_text(found["native"])),
        _line("compiler", found["compiler"] or "none: --compile needs a C++ compiler (Debian: apt-get install g++)"),
        _line("browser", found["browser"] or "none: the studio's tests need one (Debian: apt-get install chromium)"),
        "",
        "optional parts:",
    ]
    for extra, state in found["optional"].items():
        lines.append(_line(f"  {extra}", f"{'installed' if state['installed'] else 'missing  '}  {EXTRAS[extra]}"))
        if not state["installed"]:
            lines.append(_line("", f"lacks {', '.join(state['missing'])}: {state['install']}"))
    return "\n".join(lines)


def _line(name: str, text: str) -> str:
    return f"{name:<10} {text}"


def _device_text(device: Mapping[str, Any]) -> str:
    memory = f", {device['memory_gb']} GB" if device["memory_gb"] else ""
    return f"{device['name']}{memory}"


def _native_text(native: Mapping[str, Any]) -> str:
    asked = os.environ.get("TWM_NATIVE")
    if native["loaded"]:
        products = native["products"] or "PyTorch's"
        missing = ", ".join(native["missing"])
        rest = (f"; TWM_NATIVE={asked}" if asked else "") + (f"; not built: {missing}" if missing else "")
        return f"{', '.join(native['loaded'])} (C, built by {native['compiler']}; matrix products: {products}{rest})"
    reason = "not built" if native["missing"] else f"switched off (TWM_NATIVE={asked})"
    if native["compiler"] is None:
        reason = "no C compiler (Debian: apt-get install gcc)"
    return f"{reason}: training and games take longer"


def _games_text(games: Mapping[str, Any]) -> str:
    text = f"{games['found']} of the {games['benchmark']} Atari games, Catch (built in), any Gymnasium environment"
    return f"{text}; missing: {', '.join(games['missing'])}" if games["missing"] and games["found"] else text
