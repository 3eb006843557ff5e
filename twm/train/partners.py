"""A batch shared between processes of one machine: each computes the gradients of its rows, the learner adds them up.

PyTorch splits every operation between threads, and small operations gain little by it: two threads made the ``cpu``
preset's update 1.3 times as fast as one, two processes 1.7 times. Here the learner and its partners go through the
whole update side by side, each on its own cores. A partner is a child process without a state of its own: weights
lie in memory that all share, and what a partner draws comes from a seed that the learner draws for it. So checkpoints,
resume and repeatability are the learner's alone.

    request     one line of JSON: what to do, and the seed; the rows of a batch lie in shared memory
    reply       one line of JSON: the facts of its rows, or an error; the gradients lie in shared memory
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import IO, Any

import torch
from torch import Tensor, nn

from twm import child
from twm.config import Config, from_dict, to_dict
from twm.types import Batch, EnvSpec

Facts = dict[str, Tensor]  # what an update reports: 0-d tensors, not yet synchronised with the host

SMALLEST_SHARE = 4  # sequences; with fewer, a process repeats more work than it takes over
MOST = 8  # processes; more were not tried
ALIGNMENT = 64  # bytes, a cache line


def processes(config: Config, device: torch.device) -> int:
    """In how many processes to train, the learner's own included: one for each core that has enough to do."""
    if device.type != "cpu":
        return 1  # it is parallel by itself
    enough = min(config.world_model.batch_size, config.policy.batch_size) // SMALLEST_SHARE
    return max(min(torch.get_num_threads(), enough, MOST), 1)


def shares(rows: int, parts: int) -> list[slice]:
    """``rows`` in ``parts`` consecutive slices, as equal as can be."""
    bounds = [rows * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in zip(bounds, bounds[1:])]


class SharedMemory:
    """Tensors that several processes see, one after the other in a file without a name."""

    def __init__(self, file: int) -> None:
        self._map = mmap.mmap(file, 0)
        self._used = 0

    def take(self, like: Tensor) -> Tensor:
        """The next tensor, of the type, shape and strides of ``like`` (which has no holes)."""
        flat = torch.frombuffer(self._map, dtype=like.dtype, count=like.numel(), offset=self._used)
        self._used += room([like])
        return flat.as_strided(like.shape, like.stride())


def room(tensors: Iterable[Tensor]) -> int:
    """Bytes that the tensors take in shared memory."""
    return sum(-(-x.numel() * x.element_size() // ALIGNMENT) * ALIGNMENT for x in tensors)


def empty_batch(config: Config, spec: EnvSpec, rows: int) -> Batch:
    """Room for ``rows`` sequences, as :class:`twm.types.Transitions` has them."""
    T = config.world_model.sequence_length
    pixels = torch.uint8 if spec.is_image else torch.float32
    flags = torch.zeros(rows, T + 1, dtype=torch.bool)
    return Batch(
        o=torch.zeros(rows, T + 2, *spec.observation_shape, dtype=pixels),
        a=torch.zeros(rows, T + 1, dtype=torch.long),
        r=torch.zeros(rows, T + 1),
        terminated=flags,
        truncated=flags.clone(),
    )


def tensors_of(modules: Sequence[nn.Module]) -> list[Tensor]:
    """Parameters and buffers, always in the same order."""
    return [x for module in modules for x in (*module.parameters(), *module.buffers())]


class Team:
    """The learner's partners; with none, everything below does nothing."""

    def __init__(self, config: Config, spec: EnvSpec, modules: Sequence[nn.Module], count: int) -> None:
        """``modules`` move into shared memory."""
        self.count = count
        self._rows = shares(config.world_model.batch_size, count)
        self._partners: list[Partner] = []
        if count == 1:
            return
        weights = tensors_of(modules)
        parameters = [p for module in modules for p in module.parameters()]
        batches = [empty_batch(config, spec, rows.stop - rows.start) for rows in self._rows[1:]]
        size = room(weights) + sum(room(batch) + room(parameters) for batch in batches)
        with child.shared_file() as file:
            os.ftruncate(file, size)
            memory = SharedMemory(file)
            for x in weights:
                x.data = memory.take(x).copy_(x.detach())
            threads = max(torch.get_num_threads() // count, 1)
            for i, batch in enumerate(batches, start=1):
                shared = Batch(*(memory.take(x) for x in batch))
                gradients = {p: memory.take(p.detach()) for p in parameters}
                self._partners.append(Partner(_recipe(config, spec, i, count, file, threads), file, shared, gradients))

    def own(self, rows: int) -> int:
        """The learner's share of ``rows``."""
        first = shares(rows, self.count)[0]
        return first.stop - first.start

    def split(self, batch: Batch) -> Batch:
        """Put the partners' rows where they find them; returns the learner's."""
        for partner, rows in zip(self._partners, self._rows[1:], strict=True):
            for shared, whole in zip(partner.batch, batch, strict=True):
                shared.copy_(whole[rows])
        return Batch(*(x[self._rows[0]] for x in batch)) if self._partners else batch

    def begin(self, command: str) -> None:
        """Ask every partner for its part."""
        for partner in self._partners:
            partner.send(command, seed=int(torch.randint(2**62, ())))

    def finish(self, facts: Facts, modules: Sequence[nn.Module], rows: int) -> Facts:
        """Wait for the partners: their gradients are added to the parameters', the facts of all ``rows`` averaged."""
        if not self._partners:
            return facts
        parts = shares(rows, self.count)
        means = {name: value * ((parts[0].stop - parts[0].start) / rows) for name, value in facts.items()}
        parameters = [(p, p.grad) for module in modules for p in module.parameters() if p.grad is not None]
        for partner, part in zip(self._partners, parts[1:], strict=True):
            reply = partner.receive()
            for name in means:
                means[name] = means[name] + reply[name] * ((part.stop - part.start) / rows)
            for p, gradient in parameters:
                gradient.add_(partner.gradients[p])
        return means

    def close(self) -> None:
        for partner in self._partners:
            partner.close()
        self._partners = []


class Partner:
    """The learner's end of one."""

    def __init__(self, recipe: dict[str, Any], file: int, batch: Batch, gradients: dict[nn.Parameter, Tensor]) -> None:
        self.batch, self.gradients = batch, gradients
        self._process = child.start("twm.train.partners", pass_fds=[file])
        self._write(recipe)

    def send(self, command: str, **values: Any) -> None:
        self._write({"command": command, **values})

    def receive(self) -> dict[str, float]:
        stream = self._process.stdout
        line = b"" if stream is None or stream.closed else stream.readline()
        if not line:
            raise child.ChildLost(f"a training process has ended (exit code {self._process.poll()})")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"a training process failed: {reply['error']}")
        return reply

    def close(self) -> None:
        child.stop(self._process)

    def _write(self, message: dict[str, Any]) -> None:
        stream = self._process.stdin
        try:
            if stream is None or stream.closed:
                raise BrokenPipeError
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()
        except OSError as error:
            raise child.ChildLost(f"a training process has ended (exit code {self._process.poll()})") from error


# --------------------------------------------------------------------------------------------------
# The partner's end


def _recipe(config: Config, spec: EnvSpec, index: int, count: int, file: int, threads: int) -> dict[str, Any]:
    return {
        "config": to_dict(config),
        "spec": dataclasses.asdict(spec),
        "index": index,
        "count": count,
        "file": file,
        "threads": threads,
    }


def main() -> None:
    """Serve requests until there are none."""
    requests, replies = child.pipes()
    try:
        _serve(requests, replies)
    except BrokenPipeError:
        os._exit(0)  # the learner is gone: nobody to tell, nothing to flush
    except Exception as error:
        replies.write(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        replies.flush()


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    from twm.nn.memory import tune_allocator
    from twm.train.learner import Learner

    recipe = json.loads(requests.readline())
    tune_allocator()
    config, index, count = from_dict(recipe["config"]), recipe["index"], recipe["count"]
    torch.set_num_threads(recipe["threads"])
    if config.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    spec = EnvSpec(**{**recipe["spec"], **{key: tuple(recipe["spec"][key]) for key in ("frame_shape", "actions")}})
    learner = Learner(config, spec, torch.device("cpu"))
    modules = (learner.world_model, learner.policy)
    memory = SharedMemory(recipe["file"])
    for x in tensors_of(modules):
        x.data = memory.take(x.detach())
    rows = shares(config.world_model.batch_size, count)
    parameters = [p for module in modules for p in module.parameters()]
    for i in range(1, index + 1):  # those before this one take up room, too
        batch = Batch(*(memory.take(x) for x in empty_batch(config, spec, rows[i].stop - rows[i].start)))
        gradients = [memory.take(p.detach()) for p in parameters]
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient if p.requires_grad else None  # the backward pass adds to what is there
    M = shares(config.policy.batch_size, count)[index]
    starts = dream = None
    while line := requests.readline():
        request = json.loads(line)
        torch.manual_seed(request["seed"])
        facts: Facts = {}
        if request["command"] == "world_model":
            learner.world_model.zero_grad(set_to_none=False)
            facts, starts = learner.world_model_gradients(batch, len(batch.a) / config.world_model.batch_size)
        elif request["command"] == "dream" and starts is not None:
            dream = learner.dream_from(starts, M.stop - M.start)
        elif request["command"] == "policy" and dream is not None:
            learner.policy.zero_grad(set_to_none=False)
            facts = learner.policy_gradients(dream, (M.stop - M.start) / config.policy.batch_size)
        else:
            raise ValueError(f"{request['command']} is not to be had now")
        replies.write(json.dumps({name: float(value) for name, value in facts.items()}).encode() + b"\n")
        replies.flush()
