"""From losses to verdicts: one Finding per arm, by rules fixed before the first run.

At a look (5 or 10 paired seeds): BETTER or WORSE where the interval excludes 0, TOO SMALL where it also lies inside the
margin, NO DIFFERENCE where it includes 0 inside the margin, UNRESOLVED otherwise; BLIND instead of the last two where
25 % more tokens were not seen either. Between looks the last one stands and later seeds are exploratory. Before the
first look there is only a SCREEN, and with 1 or 2 seeds NO VERDICT and no interval; an arm with failed runs is
UNSTABLE.
"""

import math
from dataclasses import replace
from pathlib import Path

from diffattn import stats
from diffattn.lab import sentence
from diffattn.lab.effects import Effect, Noise, Pairs, effect_at_look, effect_in_screen, pair
from diffattn.lab.losses import Losses, failed_runs, read_losses
from diffattn.lab.ranks import RankEffect, rank_effect
from diffattn.lab.rules import Finding, Rules
from diffattn.lab.table import as_text

__all__ = ["Finding", "Losses", "Rules", "judge", "verdict"]

FEWEST_SCREENED = 3
"""With fewer seeds not even an interval is worth reading."""
SHOWN_FROM = 6
"""Seeds from which a sign-flip p can be small enough to be worth showing."""


def judge(losses: Losses, rules: Rules) -> list[Finding]:
    """One finding per arm other than the baseline, in the order of `losses.full`; without a paired seed there is none.

    Raises ValueError where the losses do not fit the rules: no baseline, or more arms than comparisons declared.
    """
    arms = _arms(losses, rules)
    comparisons = rules.comparisons or len(arms)
    failed, noise = failures_and_noise(losses, rules)
    findings = []
    for arm in arms:
        pairs = pair(losses.full, arm, rules.baseline)
        if not pairs.seeds:
            continue
        reached = [look for look in rules.looks if look[0] <= len(pairs.seeds)]
        if failed[arm] or failed[rules.baseline]:
            findings.append(_unstable(losses, rules, arm, pairs, failed))
        elif not reached:
            findings.append(_screen(losses, rules, arm, pairs, noise, comparisons))
        else:
            findings.append(_look(losses, rules, arm, pairs, noise, comparisons, reached))
    return findings


def _arms(losses: Losses, rules: Rules) -> list[str]:
    if rules.baseline not in losses.full:
        raise ValueError(f"the baseline '{rules.baseline}' has no losses; arms with losses: {', '.join(losses.full)}")
    arms = [arm for arm in losses.full if arm != rules.baseline]
    if rules.comparisons is not None and rules.comparisons < len(arms):
        raise ValueError(f"{len(arms)} arms are compared, but the plan declares only {rules.comparisons} comparisons")
    return arms


def failures_and_noise(losses: Losses, rules: Rules) -> tuple[dict[str, list[int]], Noise]:
    """Failed seeds per arm, and the pooled sd of the arms that have none."""
    if rules.counts_tokens:
        # inf is "never", which is an outcome; nan is a run that broke.
        failed = {arm: [s for s, x in runs.items() if math.isnan(x)] for arm, runs in losses.full.items()}
        return failed, (math.nan, 0)
    failed = failed_runs(losses.full, rules.baseline, rules.lower_is_better)
    return failed, stats.pooled_sd([list(runs.values()) for arm, runs in losses.full.items() if not failed[arm]])


def _unstable(losses: Losses, rules: Rules, arm: str, pairs: Pairs, failed: dict[str, list[int]]) -> Finding:
    counts = (len(failed[arm]), len(losses.full[arm]), len(failed[rules.baseline]), len(losses.full[rules.baseline]))
    p = stats.fisher_exact_p(*counts)
    numbers = {
        "failed_seeds": failed[arm],
        "failed_seeds_of_baseline": failed[rules.baseline],
        "runs": counts[1],
        "runs_of_baseline": counts[3],
        "fisher_exact_p": p,
    }
    claim = sentence.unstable(arm, *counts, p, rules)
    return _finding(arm, "UNSTABLE", None, len(pairs.seeds), claim, rules, numbers)


def _screen(losses: Losses, rules: Rules, arm: str, pairs: Pairs, noise: Noise, comparisons: int) -> Finding:
    n = len(pairs.seeds)
    word = "SCREEN" if n >= FEWEST_SCREENED else "NO VERDICT"
    if rules.counts_tokens:
        effect = rank_effect(arm, pairs, rules, rules.looks[0][1], comparisons)
        claim = sentence.judged_ranks(word, effect, rules)
        return _finding(arm, word, None, n, claim, rules, _rank_numbers(effect))
    width = noise if word == "SCREEN" else (math.nan, 0)
    effect = effect_in_screen(arm, pairs, losses, rules, width, comparisons)
    claim = sentence.screened(word, effect, rules) + sentence.repeated(effect, rules)
    return _finding(arm, word, effect, n, claim, rules, loss_numbers(effect, noise, rules))


def _look(
    losses: Losses,
    rules: Rules,
    arm: str,
    pairs: Pairs,
    noise: Noise,
    comparisons: int,
    reached: list[tuple[int, float]],
) -> Finding:
    """The verdict of the last look reached; what earlier looks had decided is told where it differs."""
    effects = [
        rank_effect(arm, pairs.first(n), rules, alpha, comparisons)
        if rules.counts_tokens
        else effect_at_look(
            arm, pairs.first(n), pair(losses.quarter, arm, rules.baseline), losses, rules, alpha, comparisons
        )
        for n, alpha in reached
    ]
    verdicts = {effect.n: _classify(effect, rules) for effect in effects}
    effect, word = effects[-1], verdicts[effects[-1].n]
    if isinstance(effect, RankEffect):
        claim, numbers = sentence.judged_ranks(word, effect, rules), _rank_numbers(effect)
    else:
        claim = sentence.judged(word, effect, rules) + sentence.repeated(effect, rules)
        numbers = loss_numbers(effect, noise, rules)
    for n, earlier in verdicts.items():
        if earlier in ("BETTER", "WORSE", "TOO SMALL") and earlier != word:
            claim += f"; the look at {sentence.seeds(n)} had said {earlier}"
    extra = pairs.seeds[effect.n :]
    if extra:
        claim += f"; {sentence.seeds(len(extra))} after the look: exploratory, not judged"
    numbers |= {"verdict_at_looks": {str(n): earlier for n, earlier in verdicts.items()}, "exploratory_seeds": extra}
    return _finding(arm, word, effect, effect.n, claim, rules, numbers)


def _classify(effect: Effect | RankEffect, rules: Rules) -> str:
    if effect.identical:
        return "NO DIFFERENCE"
    if effect.excludes_zero:
        improves = (effect.low > 0) == (rules.sign > 0)
        return "TOO SMALL" if effect.within_margin else "BETTER" if improves else "WORSE"
    if isinstance(effect, Effect) and effect.ruler is not None and not effect.ruler.seen:
        return "BLIND"
    return "NO DIFFERENCE" if effect.within_margin else "UNRESOLVED"


def _finding(
    arm: str,
    word: str,
    effect: Effect | RankEffect | None,
    n: int,
    claim: str,
    rules: Rules,
    numbers: dict[str, object],
) -> Finding:
    return Finding(
        arm=arm,
        verdict=word,
        mean=finite(effect.mean) if effect else None,
        low=finite(effect.low) if effect else None,
        high=finite(effect.high) if effect else None,
        n=n,
        worth_percent_of_tokens=effect.worth if effect else None,
        sentence=sentence.ended(claim, rules),
        numbers={"baseline": rules.baseline, "unit": "doublings of tokens" if rules.counts_tokens else rules.unit}
        | numbers,
    )


def _common_numbers(effect: Effect | RankEffect) -> dict[str, object]:
    return {
        "seeds": effect.pairs.seeds,
        "arm_values": [finite(x) for x in effect.pairs.arm],
        "baseline_values": [finite(x) for x in effect.pairs.baseline],
        "alpha": effect.alpha,
        "comparisons": effect.comparisons,
        "margin": effect.margin,
    }


def loss_numbers(effect: Effect, noise: Noise, rules: Rules) -> dict[str, object]:
    """Everything behind the sentence; low and high of None are unbounded."""
    ruler, quarter = effect.ruler, effect.quarter
    differences = effect.pairs.differences
    low, high = stats.sd_interval(*noise) if noise[1] else (math.nan, math.nan)
    spread = effect.n >= FEWEST_SCREENED and effect.sd > 0
    shown = SHOWN_FROM <= effect.n <= stats.MOST_FLIPPED
    return _common_numbers(effect) | {
        "differences": [float(d) for d in differences],
        "sd_of_differences": finite(effect.sd),
        "correlation_over_seeds": effect.correlation,
        "sign_flip_p": stats.sign_flip_p(differences) if shown else None,
        "detectable_difference": effect.detectable if spread else None,
        "seeds_for_margin": effect.seeds_for_margin(rules.looks) if spread else None,
        "margin_from": "user" if rules.margin else "ruler" if effect.margin else None,
        "ruler": ruler
        and {
            "gain": ruler.gain,
            "low": finite(ruler.low),
            "high": finite(ruler.high),
            "n": ruler.n,
            "seen": ruler.seen,
        },
        "quarter": quarter
        and {
            "difference": [finite(x) for x in quarter.difference],
            "change": [finite(x) for x in quarter.change],
            "trend": quarter.trend,
        },
        "noise_floor": {"sd": finite(noise[0]), "low": finite(low), "high": finite(high), "df": noise[1]},
    }


def _rank_numbers(effect: RankEffect) -> dict[str, object]:
    return _common_numbers(effect) | {
        "reached": effect.reached,
        "reached_by_baseline": effect.reached_baseline,
        "median": finite(effect.median),
        "median_of_baseline": finite(effect.median_baseline),
        "seeds_to_decide": effect.seeds_to_decide,
    }


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return float(value) if math.isfinite(value) else None


def verdict(
    path: str | Path,
    baseline: str | None = None,
    margin: float | None = None,
    *,
    setting: str = "",
    declared_seeds: int | None = None,
) -> str:
    """The table and the sentences for a CSV of losses (columns arm, seed, budget, loss), as text to print.

    baseline None: the arm named softmax, baseline or transformer, else the first. margin in nats; None: from the ruler.
    declared_seeds: the one number of seeds fixed before the first run, judged at alpha 0.05; None: looks at 5 and 10.
    Raises ValueError with the file and line of what is wrong, and for a single seed, which has no interval.
    """
    losses, baseline, chosen = read_losses(Path(path), baseline)
    if len(losses.full[baseline]) < 2:
        raise ValueError(f"{path}: one seed has no interval; 3 seeds are a screen, 5 or 10 can carry a verdict")
    rules = Rules(baseline=baseline, margin=margin, setting=setting)
    if declared_seeds is not None:
        rules = replace(rules, looks=((declared_seeds, 0.05),))
    return as_text(losses, rules, chosen, judge(losses, rules))
