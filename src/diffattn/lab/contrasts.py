"""Interactions: is one arm's lead larger here than there? Judged seed by seed, as the arms are (`verdict`).

A difference of two differences varies with four runs: its own paired t interval at a look, four times the pooled
variance in a screen, among as many comparisons as the plan declares. Tokens to a share of right answers are contrasted
as log2 ratios, by a test on ranks.
"""

import math
from collections.abc import Sequence

from diffattn import stats
from diffattn.lab import sentence
from diffattn.lab.effects import Effect, Interval, Noise, Pairs, effect_at_look, effect_in_screen, pair_differences
from diffattn.lab.losses import Losses, Runs
from diffattn.lab.ranks import DEFAULT_MARGIN
from diffattn.lab.rules import Contrast, Finding, Rules
from diffattn.lab.verdict import FEWEST_SCREENED, failures_and_noise, finite, loss_numbers


def judge_contrasts(losses: Losses, rules: Rules, contrasts: Sequence[Contrast]) -> list[Finding]:
    """One finding per contrast whose four arms share a seed; `rules.comparisons` counts arms and contrasts."""
    failed, noise = failures_and_noise(losses, rules)
    findings = []
    for contrast in contrasts:
        runs = _doublings(losses.full, rules) if rules.counts_tokens else losses.full
        pairs = pair_differences(runs, contrast.first, contrast.second)
        broken = [arm for arm in contrast.arms if failed.get(arm)]
        if not pairs.seeds:
            continue
        if broken:
            findings.append(_unstable(contrast, broken, pairs, rules))
        elif rules.counts_tokens:
            findings.append(_ranks(contrast, pairs, rules))
        else:
            findings.append(_loss(contrast, pairs, losses, noise, rules))
    return findings


def _doublings(runs: Runs, rules: Rules) -> Runs:
    """log2 of the tokens; never counts as twice the budget."""
    assert rules.token_budget is not None
    never = 2 * rules.token_budget
    return {
        arm: {s: math.log2(never if math.isinf(x) else x) for s, x in values.items() if not math.isnan(x)}
        for arm, values in runs.items()
    }


def _unstable(contrast: Contrast, broken: list[str], pairs: Pairs, rules: Rules) -> Finding:
    claim = f"{contrast.lead} cannot be compared: failed runs in {', '.join(broken)}"
    nothing = (math.nan, math.nan, math.nan)
    return _finding(contrast, "UNSTABLE", nothing, len(pairs.seeds), claim, rules, {"failed_arms": broken})


def _loss(contrast: Contrast, pairs: Pairs, losses: Losses, noise: Noise, rules: Rules) -> Finding:
    comparisons = rules.comparisons or 1
    reached = [look for look in rules.looks if look[0] <= len(pairs.seeds)]
    if reached:
        early = pair_differences(losses.quarter, contrast.first, contrast.second)
        n, alpha = reached[-1]
        effect = effect_at_look(contrast.name, pairs.first(n), early, losses, rules, alpha, comparisons)
        word = _classify(effect, rules)
    else:
        word = "SCREEN" if len(pairs.seeds) >= FEWEST_SCREENED else "NO VERDICT"
        width = noise if word == "SCREEN" else (math.nan, 0)
        effect = effect_in_screen(contrast.name, pairs, losses, rules, width, comparisons, runs=4)
    claim = sentence.contrasted(word, contrast, effect, rules)
    numbers = loss_numbers(effect, noise, rules)
    return _finding(contrast, word, (effect.mean, effect.low, effect.high), effect.n, claim, rules, numbers)


def _classify(effect: Effect, rules: Rules) -> str:
    """The last look's word; positive leads are improvements, so LARGER is a negative difference of losses."""
    if effect.excludes_zero:
        larger = (effect.low > 0) == (rules.sign > 0)
        return "TOO SMALL" if effect.within_margin else "LARGER" if larger else "SMALLER"
    if effect.ruler is not None and not effect.ruler.seen:
        return "BLIND"
    return "NO DIFFERENCE" if effect.within_margin or effect.identical else "UNRESOLVED"


def _ranks(contrast: Contrast, pairs: Pairs, rules: Rules) -> Finding:
    """Doublings of tokens; a screen has too few seeds for a test on ranks and shows no interval."""
    reached = [look for look in rules.looks if look[0] <= len(pairs.seeds)]
    n, alpha = reached[-1] if reached else (len(pairs.seeds), rules.looks[0][1])
    pairs = pairs.first(n)
    mean, low, high = stats.signed_rank_interval(pairs.differences, alpha, rules.comparisons or 1)
    small = max(-low, high) <= (rules.margin or DEFAULT_MARGIN)
    if not reached:
        word = "SCREEN" if n >= FEWEST_SCREENED else "NO VERDICT"
    elif low <= 0 <= high:
        word = "NO DIFFERENCE" if small else "UNRESOLVED"
    else:
        word = "TOO SMALL" if small else "LARGER" if high < 0 else "SMALLER"
    claim = sentence.contrasted_ranks(word, contrast, pairs, (mean, low, high), rules)
    numbers: dict[str, object] = {
        "seeds": pairs.seeds,
        "differences": [float(d) for d in pairs.differences],
        "alpha": alpha,
        "comparisons": rules.comparisons,
    }
    return _finding(contrast, word, (mean, low, high), n, claim, rules, numbers)


def _finding(
    contrast: Contrast, word: str, interval: Interval, n: int, claim: str, rules: Rules, numbers: dict[str, object]
) -> Finding:
    mean, low, high = (finite(value) for value in interval)
    (a, b), (c, d) = contrast.first, contrast.second
    unit = "doublings of tokens" if rules.counts_tokens else rules.unit
    return Finding(
        arm=contrast.name,
        verdict=word,
        mean=mean,
        low=low,
        high=high,
        n=n,
        worth_percent_of_tokens=None,
        sentence=f"{claim}. Per seed ({a} - {b}) - ({c} - {d}); {rules.setting or 'setting not given'}.",
        numbers={"unit": unit} | numbers,
    )
