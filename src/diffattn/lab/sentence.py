"""The wording of the verdicts: each sentence carries its numbers and ends with what it is true of."""

import math

import numpy as np

from diffattn.lab.effects import Effect, Interval, Pairs
from diffattn.lab.ranks import RankEffect
from diffattn.lab.rules import RULER_RATIO, Contrast, Rules

FARTHEST_RULERS = 3
"""Beyond so many ruler lengths a difference's worth in tokens is given as a bound: log-linearity ends somewhere."""


def describe_setting(
    *, parameters: int, tokens: int, corpus: str, learning_rate_policy: str, not_equal: str = "nothing"
) -> str:
    """The end of a sentence: non-embedding parameters, tokens, tokens per parameter, corpus, policy, inequalities."""
    size = f"{short(parameters)} non-embedding parameters"
    length = f"{short(tokens)} tokens, {tokens / parameters:.2g} tokens per parameter"
    return f"{size}, {length}, {corpus}, {learning_rate_policy}; not equal: {not_equal}"


def ended(claim: str, rules: Rules) -> str:
    """The whole sentence: the claim, the baseline, the setting."""
    return f"{claim}. Against {rules.baseline}; {rules.setting or 'setting not given'}."


def judged(verdict: str, effect: Effect, rules: Rules) -> str:
    """The claim about an arm that was judged at a look."""
    lead = _lead(effect, rules, always=verdict in ("BETTER", "WORSE", "TOO SMALL"))
    spread = f"{signed(effect, effect.low)} to {signed(effect, effect.high)}, {seeds(effect.n)}"
    if effect.identical:
        return f"{effect.arm}: identical to {rules.baseline} on all {seeds(effect.n)}, no difference at all"
    if verdict in ("BETTER", "WORSE", "TOO SMALL"):
        side = "better" if rules.sign * effect.mean > 0 else "worse"
        text = f"{effect.arm} is {side}: {signed(effect, effect.mean)} {rules.unit} ({spread}){_worth(effect, rules)}"
        if verdict == "TOO SMALL":
            text += f", too small to matter by the margin fixed beforehand ({_margin(effect, rules)})"
        if effect.constant:
            text += ", the same difference on every seed (rounded losses, or one run counted twice?)"
        return text + lead
    if verdict == "NO DIFFERENCE":
        return f"{effect.arm}: no difference larger than {_margin(effect, rules)} ({spread}){lead}"
    if verdict == "BLIND":
        more = f"{100 * (RULER_RATIO - 1):.0f} % more tokens"
        return (
            f"{effect.arm}: this setting did not see {more}; it cannot answer ({spread}){_power(effect, rules)}{lead}"
        )
    between = f"between {signed(effect, effect.low)} and {signed(effect, effect.high)} {rules.unit}"
    return f"{effect.arm}: {between}{_power(effect, rules)}{lead}"


def screened(verdict: str, effect: Effect, rules: Rules) -> str:
    """The claim about an arm with too few seeds for a verdict."""
    if effect.identical:
        seen = f"identical to {rules.baseline}"
    elif math.isfinite(effect.high):
        seen = f"{signed(effect, effect.mean)} +- {plain(effect, effect.high - effect.mean)} {rules.unit}"
    else:
        seen = f"{signed(effect, effect.mean)} {rules.unit}, no interval"
    return f"{effect.arm}: {seeds(effect.n)}: {seen}, {_undecided(verdict)}; {_next_step(effect.arm, rules)}"


def repeated(effect: Effect, rules: Rules) -> str:
    """A remark where neither the arm's losses nor the baseline's differ between seeds; else empty."""
    pairs = effect.pairs
    if effect.n < 2 or (pairs.arm != pairs.arm[0]).any() or (pairs.baseline != pairs.baseline[0]).any():
        return ""
    return f"; {effect.arm} and {rules.baseline} each have identical losses on all seeds: the seeds changed nothing"


def unstable(arm: str, failed: int, runs: int, failed_baseline: int, runs_baseline: int, p: float, rules: Rules) -> str:
    """The claim about an arm that has failed runs, or whose baseline has."""
    counts = f"{failed} of {runs} runs failed ({rules.baseline} {failed_baseline} of {runs_baseline}"
    who = f"{arm} is unstable" if failed else f"{arm}: the baseline is unstable"
    return f"{who}: {counts}; Fisher's exact p = {p:.2g}); no verdict on the loss"


def judged_ranks(verdict: str, effect: RankEffect, rules: Rules) -> str:
    """The claim about tokens to a share of right answers: a ratio of tokens, and who reached it."""
    goal = _goal(rules)
    counts = _reached(effect, rules)
    if verdict in ("SCREEN", "NO VERDICT"):
        return f"{effect.arm}: {seeds(effect.n)}: {counts}, {_undecided(verdict)}; {_next_step(effect.arm, rules)}"
    if effect.identical:
        return f"{effect.arm}: identical to {rules.baseline} on all {seeds(effect.n)}, no difference at all"
    if not math.isfinite(effect.low):
        return f"{effect.arm}: {seeds(effect.n)} cannot decide by ranks, {effect.seeds_to_decide} can; {counts}"
    ratio, low, high = (2.0**x for x in (effect.mean, effect.low, effect.high))
    spread = f"{low:.2f} to {high:.2f} x, {seeds(effect.n)}"
    if verdict in ("BETTER", "WORSE", "TOO SMALL"):
        side = "better" if effect.mean < 0 else "worse"
        text = f"{effect.arm} is {side}: {goal} with {ratio:.2f} x the tokens ({spread})"
        if verdict == "TOO SMALL":
            text += f", too small to matter by the margin fixed beforehand ({2.0**effect.margin:.2f} x)"
    elif verdict == "NO DIFFERENCE":
        text = f"{effect.arm}: no difference larger than {2.0**effect.margin:.2f} x the tokens ({spread})"
    else:
        text = f"{effect.arm}: {goal} with between {low:.2f} and {high:.2f} x the tokens ({seeds(effect.n)})"
    never = "; never is counted as twice the budget" if effect.censored else ""
    return f"{text}; {counts}{never}"


def contrasted(verdict: str, contrast: Contrast, effect: Effect, rules: Rules) -> str:
    """The claim about a contrast of losses: both leads, positive where the loss is lower, and how they differ."""
    here, there = (signed(effect, rules.sign * half.mean()) for half in (effect.pairs.arm, effect.pairs.baseline))
    more = rules.sign * effect.mean
    spread = "no interval"
    if math.isfinite(effect.high):
        low, high = sorted(math.copysign(1, more) * rules.sign * end for end in (effect.low, effect.high))
        spread = f"{signed(effect, low)} to {signed(effect, high)}"
    side, by = "larger" if more > 0 else "smaller", plain(effect, abs(more))
    told = (
        f"{contrast.lead} is {here} {rules.unit} {contrast.under[0]} and {there} {contrast.under[1]}: {side} "
        f"{contrast.under[0]} by {by} ({spread}, {seeds(effect.n)})"
    )
    if verdict in ("SCREEN", "NO VERDICT"):
        return f"{told}, {_undecided(verdict)}; {_confirm(contrast, rules)}"
    if verdict == "TOO SMALL":
        return f"{told}, too small to matter by the margin fixed beforehand ({_margin(effect, rules)})"
    if verdict == "NO DIFFERENCE":
        return f"{told}, no difference" + (f" larger than {_margin(effect, rules)}" if effect.margin else " at all")
    if verdict == "BLIND":
        more_tokens = f"{100 * (RULER_RATIO - 1):.0f} % more tokens"
        return f"{told}; this setting did not see {more_tokens}; it cannot answer{_power(effect, rules)}"
    return f"{told}, which leaves it open{_power(effect, rules)}" if verdict == "UNRESOLVED" else told


def contrasted_ranks(verdict: str, contrast: Contrast, pairs: Pairs, interval: Interval, rules: Rules) -> str:
    """The claim about a contrast of tokens to a share of right answers; pairs and interval in doublings."""
    here, there = (2.0 ** -float(np.median(half)) for half in (pairs.arm, pairs.baseline))
    mean, low, high = interval
    more = math.copysign(1, -mean)
    side, by = "larger" if mean < 0 else "smaller", f"{2.0 ** abs(mean):.2f}"
    spread = ""
    if math.isfinite(low):
        ends = sorted(2.0 ** (-more * end) for end in (low, high))
        spread = f"{ends[0]:.2f} to {ends[1]:.2f}, "
    apart = f"{side} {contrast.under[0]} by a factor of {by}" if mean else "no difference seen"
    told = (
        f"{contrast.lead} in tokens to {_goal(rules)} is a factor of {here:.2f} {contrast.under[0]} and {there:.2f} "
        f"{contrast.under[1]}: {apart} ({spread}{seeds(len(pairs.seeds))}; never counts as twice the budget)"
    )
    if verdict in ("SCREEN", "NO VERDICT"):
        return f"{told}, {_undecided(verdict)}; {_confirm(contrast, rules)}"
    if verdict in ("TOO SMALL", "NO DIFFERENCE"):
        return f"{told}, a difference within the margin fixed beforehand"
    return f"{told}, which leaves it open" if verdict == "UNRESOLVED" else told


def _confirm(contrast: Contrast, rules: Rules) -> str:
    return _next_step(" ".join(arm for arm in contrast.arms if arm != rules.baseline), rules)


def _reached(effect: RankEffect, rules: Rules) -> str:
    def middle(median: float, unit: str = "") -> str:
        return f"median {short(median)}{unit}" if math.isfinite(median) else "median never"

    arm = f"reached {_goal(rules)} in {effect.reached} of {effect.n} runs, {middle(effect.median, ' tokens')}"
    baseline = f"{rules.baseline} in {effect.reached_baseline} of {effect.n}, {middle(effect.median_baseline)}"
    return f"{arm}; {baseline}"


def _goal(rules: Rules) -> str:
    return f"{rules.metric.removeprefix('tokens_to_')} %"


def _worth(effect: Effect, rules: Rules) -> str:
    if effect.worth is None:
        if effect.ruler is not None:
            return ", worth in tokens unknown: 25 % more of them were not seen"
        return "" if effect.margin else "; without a ruler or a margin of yours, whether it matters is open"
    assert effect.ruler is not None
    rulers = rules.sign * effect.mean / effect.ruler.gain
    if abs(rulers) <= FARTHEST_RULERS:
        return f", worth {effect.worth:.0f} % of tokens"
    bound = 100 * (RULER_RATIO ** math.copysign(FARTHEST_RULERS, rulers) - 1)
    return f", worth {'more' if rulers > 0 else 'less'} than {bound:.0f} % of tokens"


def _margin(effect: Effect, rules: Rules) -> str:
    assert effect.margin is not None
    share = f" ({effect.margin_worth:.0f} % of tokens)" if effect.margin_worth is not None else ""
    return f"{plain(effect, effect.margin)} {rules.unit}{share}"


def _power(effect: Effect, rules: Rules) -> str:
    text = f"; {seeds(effect.n)} can see {plain(effect, effect.detectable)}"
    if effect.ruler is not None and not effect.ruler.seen and rules.margin is None:
        return text
    if effect.margin is None:
        return f"{text}; no ruler and no margin of yours, so no difference can be called small"
    needed = effect.seeds_for_margin(rules.looks)
    return f"{text}; {needed} would see the margin of {plain(effect, effect.margin)}"


def _lead(effect: Effect, rules: Rules, always: bool) -> str:
    if effect.quarter is None or not (always or effect.quarter.trend != "cannot tell"):
        return ""
    at_quarter = signed(effect, effect.quarter.difference[0])
    leads = effect.mean if effect.excludes_zero else effect.quarter.difference[0]
    what = "lead" if rules.sign * leads > 0 else "lag"
    trend = effect.quarter.trend
    if trend == "cannot tell":
        words = f"cannot tell whether the {what} shrinks or grows"
    else:
        words = "the lead flips" if trend == "flips" else f"the {what} {trend}"
    return f"; at a quarter of the tokens {at_quarter}: {words}"


def _undecided(verdict: str) -> str:
    return "no verdict" if verdict == "SCREEN" else "no verdict (fewer than 3 seeds allow no interval worth reading)"


def _next_step(arm: str, rules: Rules) -> str:
    if rules.confirm_runs is not None:
        time = f", about {rules.confirm_minutes:.0f} min" if rules.confirm_minutes is not None else ""
        return f"`--confirm {arm}` adds {rules.confirm_runs} fresh runs of this task{time}"
    return f"the first look is at {seeds(rules.looks[0][0])}"


def seeds(n: int) -> str:
    """n seeds, in words."""
    return f"{n} seed" if n == 1 else f"{n} seeds"


def signed(effect: Effect, value: float) -> str:
    """A difference with its sign, to as many digits as its interval gives meaning."""
    text = f"{value:+.{_digits(effect)}f}"
    return text.replace("-", "+", 1) if float(text) == 0 else text


def plain(effect: Effect, value: float) -> str:
    """A size without sign, to the same digits."""
    return f"{value:.{_digits(effect)}f}"


def _digits(effect: Effect) -> int:
    half = effect.high - effect.mean
    return min(6, max(3, 1 - math.floor(math.log10(half)))) if 0 < half < math.inf else 3


def short(number: float) -> str:
    """A count in the field's shorthand: 717k, 0.33M, 1.4B."""
    number = float(f"{number:.3g}")
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"
