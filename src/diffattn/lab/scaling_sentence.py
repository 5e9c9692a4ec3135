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
    return f"{arm}: {_claim(found, finding)}. {_limits(found)}"


def percent(share: Json | None) -> str:
    """A share with its interval, in percent."""
    if share is None:
        return "none"
    value = _share(share["value"])
    if share["low"] is None or share["high"] is None:
        return f"{value} %"
    return f"{value} % ({_share(share['low'])} to {_share(share['high'])} %)"


def _claim(found: Json, finding: Json) -> str:
    baseline, crossing = found["baseline"], finding["crossing"]
    if crossing:
        above, below = (", ".join(crossing[side]) for side in ("above", "below"))
        return (
            f"its curve crosses that of {baseline} within what was run, above it at {above} and below it at {below}, "
            "so that no one share is true of this ladder"
        )
    said = [*_separate(found, finding["shares"], baseline), *_together(finding["shares"])]
    return f"for the loss of {baseline} it needs " + "; ".join(said)


def _separate(found: Json, shares: Json, baseline: str) -> Iterator[str]:
    """Parameters at equal tokens, and tokens at equal parameters."""
    for kind, other in (("parameters", "tokens"), ("tokens", "parameters")):
        share = shares[kind]
        if len({point[kind] for point in found["points"]}) == 1:
            yield f"of {kind} nothing is known, as all runs had the same"
        elif share is None:
            yield f"no number of {kind} at equal {other} that these curves know"
        else:
            yield f"{percent(share)} of the {kind} at equal {other}" + _extrapolated(share, kind)


def _together(shares: Json) -> Iterator[str]:
    known = [f"{percent(shares[kind])} of the {name}" for kind, name in _COSTS if shares.get(kind)]
    if known:
        unseen = "" if shares["scale"]["seen"] else ", an extrapolation beyond what was run"
        yield f"at equal tokens per parameter {' and '.join(known)}{unseen}"


_COSTS = (("flops", "FLOPs"), ("seconds", "seconds of training"))


def _extrapolated(share: Json, kind: str) -> str:
    return "" if share["seen"] else f", an extrapolation to {short(share['needs'][kind])} {kind}, which were not run"


def _limits(found: Json) -> str:
    """The middle of the ladder, its ends, and all else that the claim rests on."""
    points, centre = found["points"], found["fit"]["centre"]
    sizes, tokens = (_range([point[key] for point in points]) for key in ("parameters", "tokens"))
    count = len(found["seeds"])
    strength = "one seed, so no interval" if count == 1 else f"{seeds(count)}, 95 % intervals over them"
    screen = "; a screen" if count < FEWEST_SEEDS else ""
    return (
        f"Seen from {sizes} non-embedding parameters and {tokens} tokens, {len(points)} points, told for the middle of "
        f"them ({short(centre['parameters'])} parameters, {short(centre['tokens'])} tokens); {strength}{screen}; no "
        f"verdict, and an interval that holds 100 % shows no difference. {found['data']}; "
        f"{found['learning_rate_policy']}; not equal: {found['not_equal']}."
    )


def _range(values: list[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} to {high}"


def _share(value: float) -> str:
    return f"{100 * value:.0f}" if value < 10 else f"{100 * value:,.0f}"
