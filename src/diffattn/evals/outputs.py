"""What attention writes: reads of the values, what they add to the residual stream, and signal against noise.

B windows, H heads, T tokens, E width of a value, G value groups (H % G == 0), W model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.evals.gradients import before_the_norm, normed, row_factor
from diffattn.evals.hull import outside_hull
from diffattn.evals.inside import OutputsInside, SignalToNoise
from diffattn.evals.seen import Frame, Layer
from diffattn.evals.sums import Sums, over_batch, per_head
from diffattn.ops.reference import grouped_product
from diffattn.variants.parts import ProjectedMixer

CLOSE = 1e-3
"""Share of a layer's heads that may stay unexplained by "norm, then a factor of each row"."""


@dataclass(frozen=True)
class Writing:
    """The path from one layer's effective map to its heads' outputs, in the maps' dtype."""

    values: Tensor
    """[B, G, T, E]."""
    read: Tensor
    """Effective map x values, [B, H, T, E]."""
    out: Tensor
    """What W_O takes, [B, H, T, E]."""
    gradient: Tensor | None
    """d loss / d out."""
    mixing: Tensor
    """W_O's part of each head, times itself transposed: [H, E, E]; |y W_O|^2 = y M y^T."""
    eps: float | None
    """Of the norm behind the map; None: there is none."""
    weight: Tensor | None
    """Of that norm, [E]."""

    def of_effective(self) -> Tensor:
        """Give d loss / d effective map, [B, H, T, T]."""
        assert self.gradient is not None
        of_read = before_the_norm(self.read, self.out, self.gradient, self.eps, self.weight)
        return grouped_product(of_read, self.values.mT)


def writing(layer: Layer, effective: Tensor) -> Writing | None:
    """Follow a layer's path; None where something else than norm, gain or gate lies between maps and W_O."""
    mixer, heads = layer.mixer, effective.shape[1]
    if not isinstance(mixer, ProjectedMixer) or layer.heads is None:
        return None
    dtype = effective.dtype
    values = mixer.v(layer.x).unflatten(-1, (mixer.groups, -1)).transpose(1, 2).detach().to(dtype)
    if heads % mixer.groups or layer.heads.shape[-1] != heads * values.shape[-1]:
        return None

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2).to(dtype)

    eps, weight = getattr(mixer, "norm_eps", None), getattr(mixer, "norm_weight", None)
    weight = None if weight is None else weight.detach().to(dtype)
    read, out = grouped_product(effective, values), split(layer.heads)
    unscaled = normed(read, eps, weight)
    unexplained = (out - row_factor(unscaled, out) * unscaled).norm()
    if not unexplained <= CLOSE * out.norm():
        return None
    into = mixer.o.weight.detach().to(dtype).unflatten(1, (heads, -1)).transpose(0, 1)
    gradient = None if layer.gradient is None else split(layer.gradient)
    return Writing(values, read, out, gradient, into.mT @ into, eps, weight)


class OutputSums:
    """Totals of one layer."""

    def __init__(self) -> None:
        self.sums = Sums()

    def add(self, path: Writing, layer: Layer, first: Tensor, effective: Tensor, frame: Frame) -> None:
        """Take in a layer's path, the map before the subtraction and the effective one, [B, H, T, T]."""
        size = effective.abs()
        values = path.values if path.weight is None else path.values * path.weight
        repeated = values.repeat_interleave(effective.shape[1] // values.shape[1], dim=1)
        lengths = written_norms(repeated, path.mixing)[..., None]
        at_first = frame.at_first(size)
        self.sums.add(
            mass=over_batch(size),
            first_mass=over_batch(at_first),
            contribution=over_batch(size @ lengths),
            first_contribution=over_batch(
                at_first * lengths[..., 0].gather(-1, frame.first[..., 0].expand_as(at_first))
            ),
            written=over_batch(written_norms(path.out, path.mixing).square()),
            residual=layer.residual.double().square().sum(),
        )
        if frame.answers is not None:
            self._listen(path, first, effective, frame)

    def _listen(self, path: Writing, first: Tensor, effective: Tensor, frame: Frame) -> None:
        """Signal and noise of the rows that have an answer."""
        assert frame.answers is not None
        scale = path.out.square().sum(-1) / path.read.square().sum(-1).clamp(min=torch.finfo(path.read.dtype).tiny)
        for name, map in (("first", first), ("effective", effective)):
            signal = grouped_product(map * frame.answers, path.values)
            noise = grouped_product(map, path.values) - signal
            strong, weak = (x.square().sum(-1) * frame.rows for x in (signal, noise))
            self.sums.add(**{f"{name}_signal": over_batch(strong), f"{name}_noise": over_batch(weak)})
            if name == "effective":
                self.sums.add(normed_signal=over_batch(strong * scale), normed_noise=over_batch(weak * scale))

    def sample(self, path: Writing, frame: Frame, places: list[tuple[int, int, int]]) -> None:
        """Ask a linear program about the reads at places (window, head, token)."""
        share = path.read.shape[1] // path.values.shape[1]
        outside, asked = torch.zeros(2, path.read.shape[1], device=path.read.device)
        for window, head, token in places:
            visible = path.values[window, head // share][frame.visible[window, 0, token]]
            found = outside_hull(path.read[window, head, token].cpu().numpy(), visible.cpu().numpy())
            if found is not None:
                outside[head] += found
                asked[head] += 1
        self.sums.add(outside=outside, asked=asked)

    def result(self) -> OutputsInside:
        """Divide, once."""
        s = self.sums
        noisy = None
        if "first_signal" in s:
            ratios = [per_head(s[f"{x}_signal"], s[f"{x}_noise"]) for x in ("first", "effective", "normed")]
            noisy = SignalToNoise(*ratios)
        return OutputsInside(
            first_weight=per_head(s["first_mass"], s["mass"]),
            first_contribution=per_head(s["first_contribution"], s["contribution"]),
            relative_norm=per_head((s["written"] / s["residual"]).sqrt()),
            signal_to_noise=noisy,
            outside_hull=per_head(s["outside"], s["asked"]) if "asked" in s else None,
            hull_samples=int(s["asked"].sum()) if "asked" in s else 0,
        )


def written_norms(vectors: Tensor, mixing: Tensor) -> Tensor:
    """|y W_O| of each y of [B, H, T, E]: [B, H, T]."""
    # Rounding may bring the square of a tiny vector below 0.
    return ((vectors @ mixing) * vectors).sum(-1).clamp(min=0.0).sqrt()
