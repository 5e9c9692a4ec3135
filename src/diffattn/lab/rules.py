"""What a plan fixes before its first run, and what a verdict hands on."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

RULER_RATIO = 1.25
"""The ruler is the baseline given this many times the tokens."""
MARGIN_OF_RULER = 0.43
"""The default margin as a share of the ruler's effect: log 1.1 / log 1.25, about 10 % more tokens."""
SCREEN_ALPHA = 0.05
"""A screen's Dunnett intervals cover the whole family with 95 %."""
FEWEST_SEEDS = 5
"""With fewer seeds nothing is decided: a screen."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of one comparison, fixed beforehand; a look at other data would be another plan."""

    baseline: str
    """The arm that all others are compared with."""
    comparisons: int | None = None
    """m, the number of comparisons declared, contrasts included; None: every arm of the losses but the baseline."""
    looks: tuple[tuple[int, float], ...] = ((5, 0.02), (10, 0.03))
    """(seeds, alpha) of each look at the results. A plan that declares, say, one look at 6 seeds has ((6, 0.05),)."""
    margin: float | None = None
    """The smallest difference that matters, in `unit` (a tokens metric: in doublings of tokens).

    None: 0.43 x the ruler's effect, about 10 % more tokens; a tokens metric: log2 1.1.
    """
    metric: str = "loss"
    """"loss", or "tokens_to_50" (any share): tokens until half of the answers are right, inf for never."""
    unit: str = "nats"
    lower_is_better: bool = True
    token_budget: float | None = None
    """Tokens (or steps) of a full run; a tokens metric needs it, because "never" is counted as twice the budget."""
    confirm_runs: int | None = None
    """Fresh runs that `--confirm` would add, for the sentence of a screen."""
    confirm_minutes: float | None = None
    """What those runs would take."""
    setting: str = ""
    """The end of every sentence, as `sentence.describe_setting` words it: size, corpus, policy, inequalities."""

    def __post_init__(self) -> None:
        seeds = [n for n, _ in self.looks]
        if not seeds or seeds != sorted(set(seeds)) or seeds[0] < FEWEST_SEEDS:
            raise ValueError(f"looks must be at rising numbers of seeds, {FEWEST_SEEDS} or more, got {self.looks}")
        alphas = [alpha for _, alpha in self.looks]
        if min(alphas) <= 0 or sum(alphas) > 0.05 + 1e-12:
            raise ValueError(f"the looks' alphas must be positive and sum to at most 0.05, got {self.looks}")
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin > 0):
            raise ValueError(f"the margin must be a positive number of {self.unit}, got {self.margin}")
        if self.comparisons is not None and self.comparisons < 1:
            raise ValueError(f"comparisons must be 1 or more, got {self.comparisons}")
        if self.counts_tokens and self.token_budget is None:
            raise ValueError(f"{self.metric} needs token_budget, the tokens of a full run: 'never' is beyond it")

    @property
    def counts_tokens(self) -> bool:
        """Whether the metric is tokens to a share of right answers, censored at the budget."""
        return self.metric.startswith("tokens_to_")

    @property
    def sign(self) -> int:
        """+1 if a positive difference is an improvement, -1 if a negative one is."""
        return -1 if self.lower_is_better or self.counts_tokens else 1


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """An interaction: is the first arm's difference to its reference another one than the second's to its own?"""

    name: str
    """Short name, as an arm's."""
    first: tuple[str, str]
    """An arm and what it is compared with: the first difference."""
    second: tuple[str, str]
    """The same elsewhere: the second difference. What is judged is first - second, seed by seed."""
    lead: str
    """What both differences are, in words: "V1's lead over softmax"."""
    under: tuple[str, str]
    """Where they are seen, in words: ("under rope", "under alibi")."""

    @property
    def arms(self) -> tuple[str, str, str, str]:
        """The four arms."""
        return (*self.first, *self.second)

    def to_dict(self) -> dict[str, Any]:
        """Give the fields, ready for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Undo `to_dict`."""
        return cls(**{**given, **{key: tuple(given[key]) for key in ("first", "second", "under")}})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the losses say about one arm."""

    arm: str
    """The arm, or the contrast."""
    verdict: str
    """BETTER, WORSE, TOO SMALL, NO DIFFERENCE, UNRESOLVED, BLIND, SCREEN, UNSTABLE or, below 3 seeds, NO VERDICT.

    Of a contrast LARGER or SMALLER instead of BETTER or WORSE.
    """
    mean: float | None
    """Mean over seeds of arm - baseline; a tokens metric: Hodges-Lehmann centre of log2 ratios. None: nothing."""
    low: float | None
    high: float | None
    """The interval; None with fewer than 3 seeds, for an unstable arm, and where a rank test cannot decide."""
    n: int
    """Paired seeds that the verdict rests on."""
    worth_percent_of_tokens: float | None
    """What the difference is worth in tokens, positive for a better arm; None without a ruler that was seen."""
    sentence: str
    numbers: dict[str, object] = field(default_factory=dict)
    """JSON-ready details: differences per seed, level, power, correlation, noise floor, margin, ruler, quarter, ..."""
