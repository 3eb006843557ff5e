"""The studio over HTTP and websockets. The only file that knows the web framework.

One thread dreams for everybody, turn by turn: a session never has more than one step waiting, so with n visitors
nobody waits longer than n steps. Another thread reads runs and encodes films.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from twm.config import ConfigError
from twm.studio import film, library, queries
from twm.studio.guard import LOOPBACK, Bucket, Guard
from twm.studio.library import Run
from twm.studio.limits import MAX_MESSAGE, Limits
from twm.studio.protocol import ProtocolError, pack, parse
from twm.studio.queries import whole
from twm.studio.session import QUICK, Message, Session
from twm.train.files import RunError

T = TypeVar("T")

STATIC = {path.name: path for path in (Path(__file__).parent / "static").iterdir() if path.is_file()}
"""Every file of the page by name: what is not in this table does not exist."""
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLL = 2.0  # seconds between looks for new checkpoints

log = logging.getLogger("twm.studio")


class Gone(Exception):
    """The page has left."""


class Visit:
    """A websocket and its session."""

    def __init__(self, socket: WebSocket, session: Session, run: Run) -> None:
        self.socket, self.session, self.run = socket, session, run
        self.turn = asyncio.Lock()  # one command or step of a session at a time
        self.awake = asyncio.Event()  # set while the dream plays
        self._sending = asyncio.Lock()

    async def send(self, messages: Sequence[Message]) -> None:
        async with self._sending:
            try:
                for message in messages:
                    if isinstance(message, bytes):
                        await self.socket.send_bytes(message)
                    else:
                        await self.socket.send_json(message)
            except (WebSocketDisconnect, RuntimeError) as error:  # RuntimeError: it was closed before
                raise Gone from error


class Studio:
    def __init__(self, runs: Sequence[Run], limits: Limits | None = None) -> None:
        self.runs, self.limits = list(runs), limits or Limits()
        self.visits: dict[str, Visit] = {}
        self._dreaming = ThreadPoolExecutor(1, "dream")
        self._reading = ThreadPoolExecutor(1 + self.limits.films, "read")
        self._filming = asyncio.Semaphore(self.limits.films)

    def app(self) -> Starlette:
        run = "/api/runs/{run:int}"
        routes = [
            Route("/", self.page),
            Route("/static/{name}", self.static),
            Route("/api/runs", self.list_runs),
            Route(f"{run}/facts", self._of_run(lambda run, _: run.facts())),
            Route(f"{run}/curves", self._of_run(queries.curves)),
            Route(f"{run}/visits", self._of_run(lambda run, _: run.visits())),
            Route(f"{run}/episodes", self._of_run(queries.episodes)),
            Route(f"{run}/strip", self._of_run(queries.strip)),
            Route(f"{run}/films/{{film:int}}", self.film),
            Route("/api/dreams/{session}/film.{kind}", self.recording),
            WebSocketRoute("/api/dream", self.dream),
        ]
        handlers: dict[Any, Any] = {
            HTTPException: lambda _, error: JSONResponse({"error": error.detail}, error.status_code),
            ProtocolError: lambda _, error: JSONResponse({"error": str(error)}, 400),
            RunError: lambda _, error: JSONResponse({"error": str(error)}, 503),
            Exception: lambda *_: JSONResponse({"error": "the studio failed; its terminal says more"}, 500),
        }
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        watcher = asyncio.create_task(self._watch())
        yield
        watcher.cancel()
        self._dreaming.shutdown(cancel_futures=True)
        self._reading.shutdown(cancel_futures=True)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    # ----------------------------------------------------------------------------------------------
    # Pages and facts

    async def page(self, _: Request) -> Response:
        return FileResponse(STATIC["index.html"], media_type="text/html")

    async def static(self, request: Request) -> Response:
        path = STATIC.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404, "there is no such file")
        return FileResponse(path, media_type=TYPES.get(path.suffix, "application/octet-stream"))

    async def list_runs(self, _: Request) -> Response:
        return JSONResponse([await self._in(self._reading, run.summary) for run in self.runs])

    def _run(self, index: int) -> Run:
        if not 0 <= index < len(self.runs):
            raise HTTPException(404, f"there are runs 0 to {len(self.runs) - 1}")
        return self.runs[index]

    def _of_run(self, read: Callable[[Run, Any], Any]) -> Callable[[Request], Any]:
        """An address that tells something about a run: JSON, or a packet where pictures belong to it."""

        async def respond(request: Request) -> Response:
            run = self._run(request.path_params["run"])
            found = await self._in(self._reading, partial(read, run, request.query_params))
            if isinstance(found, bytes):
                return Response(found, media_type="application/octet-stream")
            return JSONResponse(found)

        return respond

    async def film(self, request: Request) -> Response:
        """A film of the run directory: as pictures for the page, or with ``?file`` as it is."""
        films = await self._in(self._reading, self._run(request.path_params["run"]).films)
        if request.path_params["film"] >= len(films):
            raise HTTPException(404, f"there are {len(films)} films")
        path = films[request.path_params["film"]]
        if "file" in request.query_params:
            return FileResponse(path, media_type=library.FILMS[path.suffix.lower()], filename=path.name)
        async with self._filming:
            pictures = await self._in(self._reading, partial(film.read, path))
        return Response(pack({"name": path.name}, {"frames": pictures}), media_type="application/octet-stream")

    async def recording(self, request: Request) -> Response:
        visit, kind = self.visits.get(request.path_params["session"]), request.path_params["kind"]
        dream = None if visit is None else visit.session.dream
        if visit is None or dream is None or kind not in film.FORMATS:
            raise HTTPException(404, "there is no such dream, or no such kind of film")
        first = whole(request.query_params, "first", 0)
        last = whole(request.query_params, "last", dream.length)
        fps, reality = visit.session.fps, visit.session.reality
        job = partial(film.encode, dream, reality, first=first, last=last, fps=fps, kind=kind)
        async with self._filming:
            data = await self._in(self._reading, job)
        name = f'attachment; filename="dream.{kind}"'
        return Response(data, media_type=film.FORMATS[kind], headers={"content-disposition": name})

    # ----------------------------------------------------------------------------------------------
    # Dreams

    async def dream(self, socket: WebSocket) -> None:
        await socket.accept()
        run = whole(socket.query_params, "run", 0)
        if len(self.visits) >= self.limits.sessions or not 0 <= run < len(self.runs):
            full = len(self.visits) >= self.limits.sessions
            reason = f"all {self.limits.sessions} places are taken: try again later" if full else "there is no such run"
            await socket.send_json({"type": "error", "message": reason})
            await socket.close(1013 if full else 1008, reason)
            return
        identity = secrets.token_urlsafe(16)
        visit = Visit(socket, Session(self.runs[run], identity), self.runs[run])
        self.visits[identity] = visit
        player = asyncio.create_task(self._play(visit))
        try:
            await self._attempt(visit, partial(self._introduce, visit))
            await self._listen(visit)
        except Gone:
            log.debug("a page has left")
        finally:
            del self.visits[identity]
            player.cancel()
            await asyncio.gather(player, return_exceptions=True)
            with suppress(RuntimeError):  # the studio itself is closing
                self._dreaming.submit(visit.session.close)  # after the step that may still run

    async def _introduce(self, visit: Visit) -> None:
        if visit.run.model() is None:
            await self._in(self._reading, visit.run.refresh)
        await visit.send([visit.session.hello()])

    async def _listen(self, visit: Visit) -> None:
        """Commands, one after the other, until the page goes away."""
        clock = asyncio.get_running_loop().time
        bucket = Bucket(self.limits.messages_per_second, self.limits.message_burst, clock())
        while True:
            received = await visit.socket.receive()
            if received["type"] == "websocket.disconnect":
                return
            # Too fast: whoever sends waits, since nothing more is read from the connection meanwhile.
            await asyncio.sleep(bucket.wait(clock()))
            message = received.get("text")
            await self._attempt(visit, partial(self._obey, visit, received["bytes"] if message is None else message))

    async def _obey(self, visit: Visit, message: str | bytes) -> None:
        command = parse(message)
        if command.kind in QUICK:
            answer = visit.session.handle(command)
        else:
            async with visit.turn:
                answer = await self._in(self._dreaming, partial(visit.session.handle, command))
        if visit.session.playing:
            visit.awake.set()
        await visit.send(answer)

    async def _play(self, visit: Visit) -> None:
        """Steps at the session's pace for as long as it plays."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            await visit.awake.wait()
            await self._attempt(visit, partial(self._tick, visit))
            if not visit.session.playing:
                visit.awake.clear()
            # A late step is not made up for: two quick ones would look worse than one slow one.
            due = max(due + 1 / visit.session.fps, clock())
            await asyncio.sleep(due - clock())

    async def _tick(self, visit: Visit) -> None:
        async with visit.turn:
            messages = await self._in(self._dreaming, visit.session.tick)
        # A pause may have been asked for while the step was made, whose packet still says that the dream plays.
        await visit.send(messages if visit.session.playing else [*messages, {"type": "paused"}])

    async def _attempt(self, visit: Visit, work: Callable[[], Any]) -> None:
        """Do it; what goes wrong is told to the page, and the session lives on."""
        try:
            await work()
        except Gone:
            raise
        except (ProtocolError, RunError, ConfigError) as error:
            await visit.send([{"type": "error", "message": str(error)}])
        except Exception as error:
            log.exception("a dream failed")
            await visit.send([{"type": "error", "message": f"that failed: {error}"}])

    async def _watch(self) -> None:
        """Look for new checkpoints of the runs that someone visits."""
        told: dict[Run, str] = {}  # what went wrong with each, told once
        while True:
            await asyncio.sleep(POLL)
            for run in {visit.run for visit in self.visits.values()}:
                ready = run.model() is not None
                try:
                    changed = await self._in(self._reading, run.refresh)
                except Exception as error:  # one run's misfortune must not keep the news of the others
                    if told.get(run) != str(error):
                        log.warning("%s: %s", run.name, error)
                    told[run] = str(error)
                    continue
                model, replay = run.model(), run.replay()
                news = {"type": "checkpoint", "step": model.step if model else None, "replay": len(replay or ())}
                for visit in [v for v in self.visits.values() if changed and v.run is run]:
                    with suppress(Gone):
                        await visit.send([news if ready else visit.session.hello()])


# --------------------------------------------------------------------------------------------------
# Serving


def make_server(studio: Studio, listener: socket.socket, *, token: str | None, hosts: Sequence[str] = ()) -> Any:
    """A uvicorn server for a socket that already listens; ``run(sockets=[listener])`` serves until interrupted."""
    limits = studio.limits
    # Connections inherit it. Without it, the second of two small packets waits 40 ms for the receipt of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    address = listener.getsockname()[0]
    names = LOOPBACK | {name.lower() for name in (*hosts, address)}
    if token is not None:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    guard = Guard(
        studio.app(),
        hosts=frozenset(names),
        any_address=token is not None,
        token=token,
        rate=limits.requests_per_second,
        burst=limits.request_burst,
    )
    config = uvicorn.Config(
        guard,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        limit_concurrency=limits.connections,
        h11_max_incomplete_event_size=16 * 1024,
        timeout_graceful_shutdown=2,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
    )
    return uvicorn.Server(config)
