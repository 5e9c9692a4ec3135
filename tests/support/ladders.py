"""Ladders whose truth is known: losses drawn from curves, as runs and as the dictionary of a report."""

from dataclasses import dataclass

import numpy as np

from diffattn.lab.scaling_fit import Points

ARMS = ("softmax", "diff_v1")
SIZES = (50e3, 110e3, 200e3, 330e3)
RATIOS = (10, 20)


@dataclass(frozen=True)
class Truth:
    """L = E + A (s_N N / N0)^-alpha + B (s_D D / D0)^-beta, terms in nats at N0 and D0."""

    floor: float = 0.9
    size: float = 0.45
    tokens: float = 0.3
    alpha: float = 0.35
    beta: float = 0.35
    shifts: tuple[float, float] = (1.25, 1.15)
    middle: tuple[float, float] = (138e3, 1.95e6)

    def loss(self, arm: int, parameters: float, tokens: float) -> float:
        """Nats per token without noise."""
        n, d = self.shifts if arm else (1.0, 1.0)
        size = self.size * (n * parameters / self.middle[0]) ** -self.alpha
        return self.floor + size + self.tokens * (d * tokens / self.middle[1]) ** -self.beta

    def share(self, kind: str, parameters: float, tokens: float) -> float:
        """What arm 1 needs, of the baseline's, by bisection of the losses themselves."""
        goal, low, high = self.loss(0, parameters, tokens), 1e-3, 1e3
        for _ in range(100):
            k = (low * high) ** 0.5
            more = (k, 1) if kind == "parameters" else (1, k)
            if self.loss(1, parameters * more[0], tokens * more[1]) > goal:
                low = k
            else:
                high = k
        return k


def planted(truth: Truth, seeds: int = 3, sd: float = 0.0, own_sd: float = 0.0, draw: int = 0) -> Points:
    """Runs with normal noise of `sd` each, and of `own_sd` shared by all runs of an arm and seed."""
    random = np.random.default_rng(draw)
    shared = random.normal(0, own_sd, (2, seeds)) if own_sd else np.zeros((2, seeds))
    rows = [
        (arm, n, r * n, truth.loss(arm, n, r * n) + random.normal(0, 1) * sd + shared[arm, seed], seed)
        for arm in (0, 1)
        for n in SIZES
        for r in RATIOS
        for seed in range(seeds)
    ]
    arm, parameters, tokens, loss, seed = (np.array(column) for column in zip(*rows, strict=True))
    return Points(arm, parameters, tokens, loss, seed)


def report_of(losses: dict[tuple[float, float], tuple[list[float | None], list[float | None]]]) -> dict:
    """A report's dictionary with the losses of both arms, seed by seed, by (parameters, tokens)."""
    tasks = {f"{n:.3g}_{d:.3g}": _task(n, d, both) for (n, d), both in losses.items()}
    plan = {"name": "ladder", "description": "For tests.", "question": "", "limits": "", "hash": "0", "command": "x"}
    runs = {"planned": 1, "ended": 1, "failed": 0}
    return {"plan": {**plan, "runs": runs}, "tasks": tasks}


def losses_of(truth: Truth, seeds: int = 3, sd: float = 0.0) -> dict:
    """What `report_of` takes, on the ladder of `planted`."""
    random = np.random.default_rng(0)
    return {
        (n, r * n): tuple([truth.loss(arm, n, r * n) + sd * random.normal() for _ in range(seeds)] for arm in (0, 1))
        for n in SIZES
        for r in RATIOS
    }


def _task(parameters: float, tokens: float, losses: tuple) -> dict:
    arms = {}
    for arm, own in zip(ARMS, losses, strict=True):
        arms[arm] = {
            "other_parameters": parameters,
            "mismatch_percent": 0.0,
            "embedding_parameters": 1000,
            "flops_algebra": 6 * parameters,
            "flops_executed": 6 * parameters,
            "cache_bytes": 100,
            "tokens_per_second": 1e9 / parameters,
            "seconds_per_token": parameters / 1e9 * (1.1 if arm == "diff_v1" else 1.0),
            "learning_rate": 0.005,
            "failed_seeds": [],
            "seeds": {str(seed): {"final_loss": loss} for seed, loss in enumerate(own)},
        }
    return {
        "baseline": "softmax",
        "data": "planted",
        "context": 256,
        "metric": "loss",
        "split": "test",
        "hardware": "",
        "tokens": tokens,
        "learning_rate_policy": "one shared, untuned learning rate (0.005)",
        "arms": arms,
    }
