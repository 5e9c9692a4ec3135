"""Contenders timed in turn, round after round in one process, so that what else the machine does meets all alike.

Each round has an order of its own: whoever runs behind one that filled the caches pays for it, up to a fifth.
"""

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

ROUNDS = 15
"""Rounds that are enough for a median."""
FEWEST = 3
"""Rounds that are run however long they take."""
SHORTEST = 0.005
"""Seconds: what takes less is called several times in a row, since clocks and wake-ups have their own noise."""
OTHER_LOAD = 0.05
"""Share of the machine's processors that other work may take in a round before the round is thrown away."""


@dataclass(frozen=True)
class Timings:
    """Seconds of one call, by contender and round; the first list has the rounds of all."""

    seconds: Mapping[str, list[float]]
    rounds: int
    """Rounds that are kept."""
    disturbed: int | None
    """Rounds in which the machine did other work: thrown away, unless too few are left; None: it cannot be told."""
    quiet: bool
    """Whether the kept rounds are undisturbed ones, as far as can be told."""

    def median(self, name: str) -> float:
        """Seconds of one call."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, base: str) -> float | None:
        """Median over the rounds of the time relative to another contender's in the same round; None: it has none."""
        if base not in self.seconds or name not in self.seconds:
            return None
        return statistics.median(a / b for a, b in zip(self.seconds[name], self.seconds[base], strict=True))


def interleaved(plans: Mapping[str, Callable[[], object]], seconds: float, device: torch.device) -> Timings:
    """Time the plans, which must have run before, until there are `ROUNDS` quiet rounds or the time is up."""
    calls = {name: _calls(plan, device) for name, plan in plans.items()}
    kept: list[dict[str, float]] = []
    noisy: list[dict[str, float]] = []
    shuffler = random.Random(0)
    end = time.perf_counter() + seconds
    while len(kept) < ROUNDS and (len(kept) + len(noisy) < FEWEST or time.perf_counter() < end):
        load = _OtherLoad()
        order = shuffler.sample(list(plans), len(plans))
        row = {name: _sample(plans[name], calls[name], device) for name in order}
        (noisy if load.share() > OTHER_LOAD else kept).append(row)
    quiet = len(kept) >= FEWEST
    rows = kept if quiet else kept + noisy
    disturbed = len(noisy) if _busy_seconds() is not None else None
    return Timings({name: [row[name] for row in rows] for name in plans}, len(rows), disturbed, quiet)


def _calls(plan: Callable[[], object], device: torch.device) -> int:
    return max(1, math.ceil(SHORTEST / _sample(plan, 1, device)))


def _sample(plan: Callable[[], object], calls: int, device: torch.device) -> float:
    now = clock(device)
    wait(device)
    start = now()
    for _ in range(calls):
        plan()
    wait(device)
    return max(now() - start, 1e-9) / calls


def clock(device: torch.device) -> Callable[[], float]:
    """Seconds; of one CPU thread its processor time, which does not count what the system gives to others meanwhile."""
    return time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _OtherLoad:
    """What the machine's processors do besides this process, from now on."""

    def __init__(self) -> None:
        self.start, self.own, self.all = time.perf_counter(), time.process_time(), _busy_seconds()

    def share(self) -> float:
        """Of the machine's processors; 0 where it cannot be told."""
        busy = _busy_seconds()
        if busy is None or self.all is None:
            return 0.0
        others = (busy - self.all) - (time.process_time() - self.own)
        # The kernel counts in ticks, which a short round must not be judged by.
        ticks = (os.cpu_count() or 1) / os.sysconf("SC_CLK_TCK")
        return (others - ticks) / ((time.perf_counter() - self.start) * (os.cpu_count() or 1))


def _busy_seconds() -> float | None:
    """Seconds that all processors together have worked or were taken away by a hypervisor since start-up; Linux."""
    try:
        with open("/proc/stat") as lines:
            user, nice, system, _, _, irq, softirq, steal = (int(word) for word in lines.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
