"""From losses to verdicts: one Finding per arm, by rules fixed before the first run."""

from dataclasses import dataclass, field
from pathlib import Path

from diffattn.lab.losses import Losses

__all__ = ["Finding", "Losses", "Rules", "judge", "verdict"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a plan fixes before its first run."""

    baseline: str
    """The arm that all others are compared with."""
    comparisons: int | None = None
    """m, the number of comparisons declared; None: every arm of the losses but the baseline."""
    looks: tuple[tuple[int, float], ...] = ((5, 0.02), (10, 0.03))
    """(seeds, alpha) of each look at the results; alphas sum to at most 0.05, and a look has at least 5 seeds."""
    margin: float | None = None
    """The smallest difference that matters, in `unit`; None: 0.43 x the ruler's effect, about 10 % more tokens."""
    metric: str = "loss"
    """"loss", or "tokens_to_50": tokens until half of the answers are right, inf for never."""
    unit: str = "nats"
    lower_is_better: bool = True
    token_budget: float | None = None
    """Tokens of a full run; a tokens metric needs it, because "never" means beyond it."""
    screen_seeds: tuple[int, ...] = ()
    """Seeds that served to choose the arms; a confirmation on fresh seeds leaves them out."""
    confirm_runs: int | None = None
    """Fresh runs that `--confirm` would add, for the sentence of a screen."""
    confirm_minutes: float | None = None
    """What those runs would take."""
    setting: str = ""
    """The end of every sentence: parameters, tokens, corpus, learning-rate policy, what was not equal (`describe_setting`)."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the losses say about one arm."""

    arm: str
    verdict: str
    """BETTER, WORSE, TOO SMALL, NO DIFFERENCE, UNRESOLVED, BLIND, SCREEN or UNSTABLE."""
    mean: float | None
    """Mean over seeds of arm - baseline; a tokens metric: median of the log2 ratios. None where nothing can be said."""
    low: float | None
    high: float | None
    """The interval; None with one seed, and for an unstable arm."""
    n: int
    """Paired seeds that the verdict rests on."""
    worth_percent_of_tokens: float | None
    """What the difference is worth in tokens, in percent: positive for a better arm; None without a ruler that was seen."""
    sentence: str
    numbers: dict[str, object] = field(default_factory=dict)
    """JSON-ready: differences per seed, level, sign-flip p, power, correlation, noise floor, margin, quarter, failures."""


def judge(losses: Losses, rules: Rules) -> list[Finding]:
    """One finding per arm other than the baseline, in the order of `losses.full`."""
    raise NotImplementedError


def verdict(path: str | Path, baseline: str | None = None, margin: float | None = None, setting: str = "") -> str:
    """The table and the sentences for a CSV of losses (columns arm, seed, budget, loss), as text to print."""
    raise NotImplementedError
