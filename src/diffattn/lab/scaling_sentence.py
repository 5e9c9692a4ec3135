"""What may be said of an arm on a ladder: shares with their intervals, and where they were seen. Never a verdict."""

from collections.abc import Iterator
from typing import Any

from diffattn.lab.rules import FEWEST_SEEDS
from diffattn.lab.sentence import seeds, short

Json = dict[str, Any]


def sentence(found: Json, arm: str, finding: Json) -> str:
    """The claim of an arm and what it is true of: points, seeds, corpus, learning rates, what was not equal.

    found: what `scaling.measure` gives, its findings aside.
    """
    return f"{arm}: {_claim(found, finding)}. {_limits(found, finding)}"


def percent(share: Json) -> str:
    """A share with its interval, in percent; that it has no upper bound is said."""
    value = "no number is enough" if share["value"] is None else f"{_share(share['value'])} %"
    return value + _bounds(share)


def _bounds(share: Json) -> str:
    low, high = share["low"], share["high"]
    if low is None:
        return " (no bound)" if share["unbounded"] and share["value"] is not None else ""
    return f" ({_share(low)} % or more, no upper bound)" if high is None else f" ({_share(low)} to {_share(high)} %)"


def _claim(found: Json, finding: Json) -> str:
    baseline, crossing, shares = found["baseline"], finding["crossing"], finding["shares"]
    if not shares:
        above, below = (", ".join(crossing[side]) for side in ("above", "below"))
        if crossing["judged"]:
            return (
                f"its curve crosses that of {baseline} within what was run, above it at {above} and below it at "
                f"{below}, so that no one share is true of this ladder"
            )
        return (
            f"whether its curve crosses that of {baseline} cannot be judged with one seed: its loss is higher at "
            f"{above} and lower at {below}, so that no share is given"
        )
    said = [*_separate(shares, found["varied"]), *_together(shares, found["varied"])]
    return f"for the loss of {baseline} it needs " + "; ".join(said)


def _separate(shares: Json, varied: list[str]) -> Iterator[str]:
    """Parameters at equal tokens, and tokens at equal parameters."""
    for kind in varied:
        share, equal = shares[kind], f"at equal {OTHER[kind]}"
        if share["value"] is None:
            yield f"more than any number of {kind} {equal}, by these curves{_bounds(share)}"
        else:
            yield f"{percent(share)} of the {kind} {equal}" + _extrapolated(share, kind)


def _together(shares: Json, varied: list[str]) -> Iterator[str]:
    """FLOPs and seconds along what varied, and that of an axis that did not nothing is known."""
    scale = shares["scale"]
    known = [f"{percent(shares[kind])} of the {name}" for kind, name in _COSTS if shares.get(kind)]
    if known and scale["value"] is not None:
        equal = "tokens per parameter" if len(varied) > 1 else OTHER[varied[0]]
        unseen = "" if scale["seen"] else ", an extrapolation beyond what was run"
        yield f"at equal {equal} {' and '.join(known)}{unseen}"
    if len(varied) == 1:
        yield f"all runs had one number of {OTHER[varied[0]]}, so that what it needs of them is not known"


OTHER = {"parameters": "tokens", "tokens": "parameters"}
_COSTS = (("flops", "FLOPs"), ("seconds", "seconds of training"))


def _extrapolated(share: Json, kind: str) -> str:
    return "" if share["seen"] else f", an extrapolation to {short(share['needs'][kind])} {kind}, which were not run"


def _limits(found: Json, finding: Json) -> str:
    """The middle of the ladder, its ends, and all else that the claim rests on."""
    points, centre = found["points"], found["fit"]["centre"]
    sizes, tokens = (_range([point[key] for point in points]) for key in ("parameters", "tokens"))
    count = len(found["seeds"])
    strength = f"{seeds(count)}, 95 % intervals over them"
    if count == 1:
        strength = "one seed, so no interval" + _unjudged(finding, len(points))
    screen = "; a screen" if count < FEWEST_SEEDS else ""
    return (
        f"Seen from {sizes} non-embedding parameters and {tokens} tokens, {len(points)} points, told for the middle of "
        f"them ({short(centre['parameters'])} parameters, {short(centre['tokens'])} tokens); {strength}{screen}; no "
        f"verdict{', and an interval that holds 100 % shows no difference' * (count > 1)}. {found['data']}; "
        f"{found['learning_rate_policy']}; not equal: {found['not_equal']}."
    )


def _unjudged(finding: Json, points: int) -> str:
    """What one seed's points show where a share is given."""
    if not finding["shares"]:
        return ""
    higher, lower = (len(finding["crossing"][side]) for side in ("above", "below"))
    return f" and no telling whether the curves cross (its loss is higher at {higher} and lower at {lower} of {points})"


def _range(values: list[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} to {high}"


def _share(value: float) -> str:
    return f"{100 * value:.0f}" if value < 10 else f"{100 * value:,.0f}"
