"""Losses and verdicts as text for a terminal."""

import numpy as np

from diffattn.lab.losses import Losses
from diffattn.lab.rules import Finding, Rules


def as_text(losses: Losses, rules: Rules, chosen: str, findings: list[Finding]) -> str:
    """A table of the arms, what was assumed, and the verdict sentences. `chosen` says how the baseline was found."""
    header = ["arm", "runs", "mean", "sd", "difference", "low", "high", "seeds", "verdict"]
    rows = [header, _row(rules.baseline, losses, None)]
    rows += [_row(finding.arm, losses, finding) for finding in findings]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(_cell(i, text, widths[i]) for i, text in enumerate(row)).rstrip() for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([*lines, "", *_assumptions(losses, rules, chosen, findings), "", *_sentences(findings)])


def _row(arm: str, losses: Losses, finding: Finding | None) -> list[str]:
    values = np.array(list(losses.full[arm].values()))
    finite = values[np.isfinite(values)]
    mean = f"{finite.mean():.4f}" if len(finite) else "-"
    sd = f"{finite.std(ddof=1):.4f}" if len(finite) > 1 else "-"
    runs = f"{len(values)}" if len(finite) == len(values) else f"{len(finite)} of {len(values)}"
    if finding is None:
        return [arm, runs, mean, sd, "", "", "", "", "baseline"]
    numbers = ["-" if x is None else f"{x:+.4f}" for x in (finding.mean, finding.low, finding.high)]
    return [arm, runs, mean, sd, *numbers, str(finding.n), finding.verdict]


def _cell(column: int, text: str, width: int) -> str:
    return text.ljust(width) if column in (0, 8) else text.rjust(width)


def _assumptions(losses: Losses, rules: Rules, chosen: str, findings: list[Finding]) -> list[str]:
    lines = [f"Baseline: {rules.baseline} ({chosen}). Difference = arm - baseline per seed, {rules.unit}."]
    looks = " and ".join(f"{n} seeds (alpha {alpha:g})" for n, alpha in rules.looks)
    lines.append(f"Looks: {looks}; Bonferroni over {rules.comparisons or len(findings)} comparisons.")
    floors = [finding.numbers["noise_floor"] for finding in findings if "noise_floor" in finding.numbers]
    if floors and isinstance(floors[0], dict) and floors[0]["sd"] is not None:
        floor = floors[0]
        lines.append(
            f"Noise floor: a run's sd is {floor['sd']:.4f} ({floor['low']:.4f} to {floor['high']:.4f}, 95 %), "
            f"pooled over the arms without failures."
        )
    if not losses.ruler:
        lines.append("Ruler: none (rows with budget 'ruler': the baseline given 1.25 x tokens).")
    for finding in findings:
        ruler = finding.numbers.get("ruler")
        if isinstance(ruler, dict) and ruler["low"] is not None:
            seen = "seen" if ruler["seen"] else "not seen"
            lines.append(
                f"Ruler: 25 % more tokens gain {ruler['gain']:.4f} ({ruler['low']:.4f} to {ruler['high']:.4f}): {seen}."
            )
            break
    lines += [_line(finding) for finding in findings if finding.numbers.get("detectable_difference") is not None]
    return lines


def _line(finding: Finding) -> str:
    numbers = finding.numbers
    text = f"{finding.arm}: {finding.n} seeds can see {numbers['detectable_difference']:.4f}"
    if numbers["correlation_over_seeds"] is not None:
        text += f"; correlation with the baseline over seeds {numbers['correlation_over_seeds']:+.2f}"
    if numbers["sign_flip_p"] is not None:
        text += f"; sign-flip p {numbers['sign_flip_p']:.3g} (shown, does not decide)"
    return text + "."


def _sentences(findings: list[Finding]) -> list[str]:
    return [f"{finding.verdict}  {finding.sentence}" for finding in findings]
