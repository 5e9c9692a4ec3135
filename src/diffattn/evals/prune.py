"""What second maps are worth: the loss as they are removed one after another, without training again.

Removing a second map puts 0 in the place of its λ: the head reads A1 v, and the norm and the gain behind it stay. What
a baseline loses with as many parameters, as whole heads, is the yardstick. Units are ordered once, by what each alone
does to the loss (to try all that are left before every step would square the number of evaluations), and on other
windows than those that the losses are reported on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffattn.data.base import NOT_SCORED, Batch, Split
from diffattn.evals.heldout import held_out, together
from diffattn.evals.intervals import CLUSTERS, Z, t_quantile
from diffattn.evals.removal import (
    Removal,
    Unit,
    all_heads,
    blanked,
    inputs_of,
    masked,
    parameters_gone,
    second_maps,
)
from diffattn.hub.convert import load
from diffattn.model.decoder import Decoder
from diffattn.ops.loss import token_losses

LEAST_WINDOWS = 8
"""Half of them give the order, half the losses; an interval over fewer means nothing."""
NO_LAMBDA = 0.05
"""Mean |λ| below which λ counts as gone to zero."""


@dataclass(frozen=True)
class Alone:
    """A unit, and what removing it alone does on the ranking windows."""

    unit: Unit
    change: float
    """Nats per token that are added."""
    lam: float | None
    """Mean |λ| over tokens; None for the baseline's heads."""


@dataclass(frozen=True)
class Step:
    """The model without the first units of an order, on the reporting windows."""

    count: int
    """How many are removed."""
    last: Unit | None
    """The last of them."""
    parameters: int
    """Parameters that do nothing any more."""
    loss: float
    """Nats per token."""
    change: float
    """Nats per token above the whole model's loss."""
    interval: float
    """Half of the change's 95 % interval: over windows, for this trained model."""


@dataclass(frozen=True)
class Pruning:
    """A model without more and more of its second maps, and a baseline without as many parameters."""

    maps: list[Alone]
    """Every second map."""
    by_loss: list[Step]
    """Removed in the order of `Alone.change`, from none to all."""
    by_lambda: list[Step]
    """Removed in the order of `Alone.lam`, from none to all."""
    heads: list[Alone]
    """Every head of the baseline; empty without one."""
    baseline: list[Step]
    """For each step of `by_loss` the fewest heads that are as many parameters; empty without a baseline."""
    mixer_parameters: int
    """All parameters of the model's attention."""
    tokens: int
    """Scored tokens of the reporting windows."""
    data: str = ""
    """What they are, in one line."""

    def to_dict(self) -> dict[str, Any]:
        """Give the fields and the sentence, ready for JSON."""
        return {**asdict(self), "sentence": sentence(self)}


def prune_folder(
    folder: Path,
    baseline: Path | None = None,
    source: str | None = None,
    split: Split = "dev",
    tokens: int | None = None,
    batch_size: int = 8,
) -> Pruning:
    """Prune a saved model, and a saved baseline beside it, on held-out data as `held_out` opens them.

    tokens: about so many, half of them for the order. ValueError: see `prune` and `held_out`; a baseline with another
    vocabulary or context; too little text.
    """
    model, other = load(folder), None if baseline is None else load(baseline)
    for field in ("vocab_size", "context"):
        ours, theirs = (getattr(part.config, field) for part in (model, other or model))
        if ours != theirs:
            raise ValueError(f"{field}: {ours} in {folder}, {theirs} in {baseline}; their losses cannot be compared")
    data = held_out(folder, model, source)
    windows = list(data.evaluation(split, tokens))
    if len(windows) < LEAST_WINDOWS:
        raise ValueError(
            f"{len(windows)} windows of {model.config.context} tokens are too few to prune by; "
            f"{LEAST_WINDOWS} are needed: raise --tokens, or give more text"
        )
    ranking, reporting = (list(together(windows[start::2], batch_size)) for start in (0, 1))
    return replace(prune(model, ranking, reporting, other), data=f"{data.describe()}, {split}")


def prune(
    model: Decoder, ranking: Sequence[Batch], reporting: Sequence[Batch], baseline: Decoder | None = None
) -> Pruning:
    """Remove the model's second maps by what they do to the loss and by |λ|, and beside them heads of a baseline.

    ValueError: no second maps, a λ that does something else than multiply them, a baseline that is not made of heads,
    a loss that is not finite.
    """
    lam = mean_lambdas(model, ranking)
    maps = [Alone(unit, change, lam[unit]) for unit, change in changes(model, second_maps(model), ranking, masked)]
    by_loss = [one.unit for one in sorted(maps, key=lambda one: one.change)]
    by_lambda = sorted(lam, key=lambda unit: lam[unit])
    steps = removed(model, by_loss, reporting, masked)
    heads: list[Alone] = []
    beside: list[Step] = []
    if baseline is not None:
        heads = [Alone(unit, change, None) for unit, change in changes(baseline, all_heads(baseline), ranking, blanked)]
        order = [one.unit for one in sorted(heads, key=lambda one: one.change)]
        beside = removed(baseline, order, reporting, blanked, [step.parameters for step in steps])
    return Pruning(
        maps=maps,
        by_loss=steps,
        by_lambda=removed(model, by_lambda, reporting, masked),
        heads=heads,
        baseline=beside,
        mixer_parameters=sum(p.numel() for block in model.blocks() for p in block.mixer.parameters()),
        tokens=sum(int((batch.targets != NOT_SCORED).sum()) for batch in reporting),
    )


@torch.no_grad()
def mean_lambdas(model: Decoder, batches: Sequence[Batch]) -> dict[Unit, float]:
    """Give the mean of |λ| over all tokens of each second map."""
    sums: dict[Unit, float] = {}
    for batch in batches:
        tokens, documents = inputs_of(model, batch)
        for layer, lam in enumerate(model.lambdas(tokens, documents)):
            if lam is None:
                continue
            total = lam.abs().double().expand(*tokens.shape, *lam.shape[-1:]).sum(dim=(0, 1))
            for head, value in enumerate(total.flatten().tolist()):
                unit = Unit(layer, head if lam.ndim else None)
                sums[unit] = sums.get(unit, 0.0) + value
    count = sum(batch.tokens.numel() for batch in batches)
    return {unit: value / count for unit, value in sums.items()}


def changes(
    model: Decoder, units: Sequence[Unit], windows: Sequence[Batch], removal: Removal
) -> list[tuple[Unit, float]]:
    """Give for each unit how many nats per token the model loses without it alone."""
    whole = window_losses(model, windows)
    if not whole.isfinite().all():
        raise ValueError(f"{model.config.mixer.name}: the loss is not finite, so that nothing can be taken from it")
    found = []
    for unit in units:
        with removal(model, [unit]):
            found.append((unit, _difference(whole, window_losses(model, windows))[0]))
    return found


def removed(
    model: Decoder,
    order: Sequence[Unit],
    windows: Sequence[Batch],
    removal: Removal,
    targets: Sequence[int] | None = None,
) -> list[Step]:
    """Give the loss without the first 0, 1, ... all units of an order.

    targets: instead, for each number of parameters without the fewest units that are at least as many (or all units).
    """
    gone = parameters_gone(model, order, windows[0], removal)
    last = len(order)
    counts = [next((n for n in range(last) if gone[n] >= target), last) for target in targets or gone]
    whole = window_losses(model, windows)
    steps: dict[int, Step] = {}
    for count in sorted(set(counts)):
        with removal(model, order[:count]):
            losses = window_losses(model, windows)
        loss = float(losses[:, 0].sum() / losses[:, 1].sum())
        change, interval = _difference(whole, losses)
        steps[count] = Step(count, order[count - 1] if count else None, gone[count], loss, change, interval)
    return [steps[count] for count in counts]


@torch.no_grad()
def window_losses(model: Decoder, windows: Sequence[Batch]) -> Tensor:
    """Give the sum of nats and the number of scored tokens of each window, [N, 2] in float64."""
    found = []
    for batch in windows:
        tokens, documents = inputs_of(model, batch)
        targets = batch.targets.to(tokens.device)
        losses = token_losses(model.hidden(tokens, documents), model.head, targets, NOT_SCORED)
        found.append(torch.stack((losses.double().sum(1), (targets != NOT_SCORED).sum(1).double()), dim=1))
    return torch.cat(found)


def _difference(before: Tensor, after: Tensor) -> tuple[float, float]:
    """Give the change in nats per token, and half of its 95 % interval as a ratio of sums over windows."""
    count = before[:, 1]
    added = after[:, 0] - before[:, 0]
    change = added.sum() / count.sum()
    many = len(count)
    spread = (added - change * count).square().sum() * many / max(1, many - 1)
    quantile = t_quantile(many) if 1 < many < CLUSTERS else Z
    return float(change), quantile * float(spread.sqrt() / count.sum())


def sentence(found: Pruning) -> str:
    """Answer "λ will go to zero, and it is only pruning" for this model."""
    lambdas, count, last = [one.lam or 0.0 for one in found.maps], len(found.maps), found.by_loss[-1]
    small = sum(value < NO_LAMBDA for value in lambdas)
    spread = f"mean |λ| {min(lambdas):.2f} to {max(lambdas):.2f}"
    where = "does not go to zero" if not small else f"goes to zero in {small} of {count} second maps"
    gone = f"all {count} second maps ({last.parameters / found.mixer_parameters:.0%} of the attention's parameters)"
    cost = f"{last.change:+.4f} ± {last.interval:.4f} nats"
    if last.change <= last.interval:
        verdict = f"and pruning them costs nothing that these tokens show: without {gone} the loss changes by {cost}"
    else:
        free = next(n for n, step in enumerate(found.by_loss[1:]) if step.change > step.interval)
        verdict = (
            f"and it is not only pruning: without {gone} the loss changes by {cost}; "
            f"{free or 'none'} of them can go without a change that these tokens show"
        )
    beside = ""
    if found.baseline:
        end = found.baseline[-1]
        beside = (
            f"; the baseline without {end.count} of its {len(found.heads)} heads, as many parameters, changes by "
            f"{end.change:+.4f} ± {end.interval:.4f}"
        )
    return f"λ {where} ({spread}), {verdict}{beside}. Nothing was trained after the removal."
