"""``twm studio``."""

from __future__ import annotations

import errno
import importlib
import ipaddress
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from twm.commands import UsageError
from twm.commands.options import check_device
from twm.config import ConfigError

PORT = 8420


@dataclass(frozen=True)
class Studio:
    """Play inside the dream, in a browser: with the keyboard, with the policy, or both; look into the model; watch
    a training. Works while the run is still training. Without RUN the agent that ships with twm dreams."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN")]] = ()
    """Run directories. Dreams begin in the first one; the page offers the others too."""
    port: int | None = None
    """Port to listen on; 0 takes any free one (default: 8420, or the next free one)."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own makes the studio ask for a token."""
    allow_host: Annotated[tuple[str, ...], arg(metavar="NAME")] = ()
    """Further names that browsers may call the studio by, for example that of a proxy in front of it."""
    token: bool = False
    """Ask for a token on 127.0.0.1 too: for machines that are shared with others."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which weights: the latest, or those with the best evaluation during training."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps; for one dream at a time a CPU is quick enough."""

    def __call__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise UsageError(f"--port must lie between 0 and 65535, but is {self.port}")
        check_device(self.device)
        server = _import_server()
        from twm.studio.library import Run, demo_run

        paths = self.runs or (demo_run(),)
        named = zip(paths, run_names(paths))
        runs = [Run(path, name=name, which=self.checkpoint, device=self.device) for path, name in named]
        print(f"reading {runs[0].name} …", file=sys.stderr)
        runs[0].refresh()
        token = secrets.token_urlsafe(24) if self.token or not is_loopback(self.host) else None
        with listen(self.host, self.port) as listener:
            print(greeting(self.host, listener.getsockname()[1], token), flush=True)
            web = server.make_server(server.Studio(runs), listener, token=token, hosts=self.allow_host)
            _limit_threads()
            web.run(sockets=[listener])


def run_names(paths: Sequence[Path]) -> list[str]:
    """What the page calls each run: its directory, with the ones around it where that alone would be ambiguous."""
    parts = [path.resolve().parts for path in paths]
    shortest = (["/".join(own[-n:]) for own in parts] for n in range(1, max(map(len, parts)) + 1))
    names = next((names for names in shortest if len(set(names)) == len(names)), None)
    return names or [f"{path.resolve().name} {number}" for number, path in enumerate(paths, 1)]


def _import_server() -> Any:
    try:
        return importlib.import_module("twm.studio.server")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'the studio needs packages that are not installed ({error.name}): pip install "twm[studio]"'
        ) from error


def _limit_threads() -> None:
    """Single states are so small that a second thread costs more than it brings, and a training may need it."""
    import torch

    torch.set_num_threads(1)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket: on the given port, or on the first free one of ten."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [port] if port is not None else range(PORT, PORT + 10):
        try:
            return socket.create_server((host, candidate), family=family)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise ConfigError(f"cannot listen on {host} port {candidate}: {error.strerror or error}") from error
    taken = f"port {port} is" if port is not None else f"ports {PORT} to {PORT + 9} are"
    raise ConfigError(f"{taken} taken: give another one with --port, or --port 0 for any free one")


def greeting(host: str, port: int, token: str | None) -> str:
    """The address to open, and how to reach it from elsewhere."""
    name = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    address = f"http://{name}:{port}/" + (f"?token={token}" if token else "")
    lines = [f"studio  {address}"]
    if is_loopback(host):
        lines.append(f"        from another machine: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE, then open the same")
    else:
        lines.append("        anyone with this address can use the studio; the connection is not encrypted")
    return "\n".join([*lines, "        Ctrl-C stops it"])
