"""How balanced sampling shares the training time among the entries of a growing dataset (paper, section 2.3 and
figure "sampling"): a simulation of the schedule that needs no training, and the statistics of visit counts, whether
simulated or from a run's replay. Entries are numbered in the order they were experienced.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError

Visits = npt.NDArray[np.integer]


def share_of_time(visits: Visits) -> npt.NDArray[np.float64]:
    """(len,) Share of the training time spent on entries 0..i, for each i; the last is 1."""
    total = np.cumsum(visits, dtype=np.float64)
    if not len(visits) or total[-1] == 0:
        raise ConfigError("no entry has been visited, so there is no training time to share out\n  train first")
    share: npt.NDArray[np.float64] = total / total[-1]
    return share


def half_time_entry(visits: Visits) -> int:
    """The smallest number of first entries that together take at least half of the training time."""
    return int(np.searchsorted(share_of_time(visits), 0.5)) + 1


def first_half_share(visits: Visits) -> float:
    """Share of the training time spent on the first half of the entries (of an odd number, half of the middle one)."""
    share = np.concatenate([[0.0], share_of_time(visits)])
    middle = len(visits) // 2
    return float(share[middle] + share[-(middle + 1)]) / 2


def simulate(
    temperature: float,
    *,
    interactions: int = 100_000,
    prefill: int = 5_000,
    updates: int = 125_000,
    pretraining: int = 6_579,
    batch_size: int = 100,
    sequence_length: int = 16,
    seed: int = 0,
) -> npt.NDArray[np.int32]:
    """(interactions,) Visits of each entry at the end of the paper's schedule: ``pretraining`` updates on the
    ``prefill`` first entries, then ``updates`` spread evenly over the interactions that follow, each drawing
    ``batch_size`` different starts with p = softmax(-visits / temperature). Not an approximation: the draws have
    exactly the distribution of the replay's.

    The reading of the schedule behind the paper's "50 % of the training time is used for the first 19K entries":
    time is the sample budget. An update costs N·ℓ + M·H = 7,600 samples, so 10⁹ are 131,579 updates, and the 50M for
    pretraining are 6,579 of them. That is 5 % of the time on the first 5 % of the entries, what they would get if
    training kept pace with the interactions from the very first; so under uniform sampling the share x of the
    entries takes ∫₀¹ min(1, x/n) dn = x (1 - ln x) of the time, which is ½ at x = 0.187: 18.7K entries. The main loop
    alone (``pretraining=0``) would give 20.2K, and the 28,125 world model batches that 90 % of the pretraining budget
    pay for at N·ℓ samples each would give 14.1K.
    """
    if not temperature > 0:
        raise ConfigError(f"sampling temperature must be above 0, got {temperature}\n  try 20; inf is uniform sampling")
    if not batch_size + sequence_length < prefill <= interactions:
        raise ConfigError(
            f"a batch of {batch_size} different sequences of {sequence_length} needs a prefill between "
            f"{batch_size + sequence_length + 1:,} steps and all {interactions:,} interactions, got {prefill:,}"
        )
    ahead = np.ceil(np.arange(1, updates + 1) * ((interactions - prefill) / max(updates, 1))).astype(np.int64)
    sizes = np.concatenate([np.full(pretraining, prefill), np.minimum(prefill + ahead, interactions)])
    sampler = LazySampler(interactions, batch_size, temperature, np.random.default_rng(seed))
    for starts in (sizes - sequence_length - 1).tolist():  # the valid ones are 1, …, starts
        sampler.draw(starts)
    visits = np.zeros(interactions, np.int32)
    visits[1:] = sampler.visits[:-1]
    return visits


class LazySampler:
    """Draws and counts entries with p = softmax(-visits / τ) without replacement, exactly, yet without looking at every
    count each time.

    Without replacement, a batch is the first ``count`` entries to arrive in a race where entry i arrives after an
    exponential time of rate w_i = exp(-v_i / τ). The newest entries, few but changing fast, race one by one. All
    older ones share one Poisson process, whose rate is the sum of their weights w̄_i *at the last look*; an arrival
    belongs to entry i with probability proportional to w̄_i. Counts only grow, so w_i ≤ w̄_i, and keeping
    an arrival with probability w_i / w̄_i leaves exactly the process of rate w_i (thinning). Should the arrivals
    generated not suffice, the entries that have not arrived race on one by one: exponentials have no memory.
    Times are kept as logarithms, so that no temperature overflows.
    """

    BLOCK = 64  # batches whose arrivals are generated at once
    SURPLUS = 8  # arrivals beyond a batch and a quarter

    def __init__(
        self, capacity: int, count: int, temperature: float, rng: np.random.Generator, newest: int = 128
    ) -> None:
        self.visits = np.zeros(capacity, np.int32)
        self._count, self._temperature, self._rng, self._newest = count, temperature, rng, newest
        self._position = np.zeros(capacity, np.int64)  # scratch, to find first arrivals
        self._old, self._block, self._outdated = 0, self.BLOCK, False

    def draw(self, size: int) -> npt.NDArray[np.int64]:
        """``count`` different ones of the entries 0..size-1, in no particular order; their visits are counted."""
        if self._outdated or size - self._old > 2 * self._newest:
            self._look(max(0, size - self._newest))
        entries = np.arange(self._old, size)
        times = self._race(entries)
        if self._old:
            arrived, when, horizon = self._arrivals()
            entries, times = np.concatenate([entries, arrived]), np.concatenate([times, when])
            if np.count_nonzero(times <= horizon) < self._count:
                rest = np.setdiff1d(np.arange(self._old), arrived)
                entries = np.concatenate([entries, rest])
                times = np.concatenate([times, np.logaddexp(horizon, self._race(rest))])
                self._outdated = True
        chosen = entries[times.argpartition(self._count - 1)[: self._count]]
        self.visits[chosen] += 1
        return chosen

    def _race(self, entries: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Logarithms of the entries' arrival times, one by one."""
        return _log(self._rng.standard_exponential(len(entries))) + self.visits[entries] / self._temperature

    def _look(self, old: int) -> None:
        """Take the weights of the entries 0..old-1 as they are now."""
        self._old, self._block, self._outdated = old, self.BLOCK, False  # arrivals generated before are void
        if old:
            self._seen = self.visits[:old].copy()
            least = int(self._seen.min())
            self._cumulative = np.cumsum(np.exp((least - self._seen) / self._temperature))
            self._log_rate = math.log(self._cumulative[-1]) - least / self._temperature

    def _arrivals(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], float]:
        """Which old entries arrive, the logarithms of their first times, and the one up to which that is complete."""
        if self._block == self.BLOCK:
            self._generate()
        who, times = self._who[self._block], self._times[self._block]
        kept = self.visits[who] <= self._limit[self._block]
        self._block += 1
        self._outdated = int(np.count_nonzero(kept)) < 0.9 * len(who)
        who, when = who[kept], times[kept]
        order = np.arange(len(who))
        self._position[who[::-1]] = order[::-1]  # of equal entries the last write stays: the earliest arrival
        first = self._position[who] == order
        return who[first], when[first], float(times[-1])

    def _generate(self) -> None:
        """Arrivals of the shared process for the next batches. One of entry i is kept with probability
        exp(-(v_i - v̄_i) / τ): as long as v_i ≤ v̄_i + τ E with E ~ Exp(1)."""
        shape = (self.BLOCK, self._count + self._count // 4 + self.SURPLUS)
        self._times = _log(np.cumsum(self._rng.standard_exponential(shape), axis=1)) - self._log_rate
        below = np.nextafter(self._cumulative[-1], 0.0)  # rounding must not reach past the last entry
        self._who = np.searchsorted(self._cumulative, self._rng.random(shape) * below, side="right")
        patience = self._rng.standard_exponential(shape) + np.finfo(np.float64).tiny  # so that ∞ · 0 is not met
        self._limit = self._seen[self._who] + self._temperature * patience
        self._block = 0


def _log(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log in place; 0, which an exponential can be, is the first to arrive."""
    with np.errstate(divide="ignore"):
        return np.log(times, out=times)
