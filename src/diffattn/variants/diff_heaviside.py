"""The difference of two maps behind a step."""

from dataclasses import dataclass

from torch import Tensor

from diffattn.variants.base import Site, register
from diffattn.variants.entries import BracketConfig, BracketMixer


@register("diff_heaviside")
@dataclass(frozen=True, kw_only=True)
class DiffHeaviside(BracketConfig):
    """A1 - λ step(A1 - λ A2), or the gate A1 step(A1 - λ A2); step(0) = 0.

    V1's otherwise, its start too. The gradient of the step is taken as 1. Without the gate every kept key costs a whole
    λ, so that a row sums to 1 - λ n for n kept keys: it falls with the length.
    """

    gate: bool = False
    """Keep the first map's weight where the difference is above 0, instead of subtracting λ there."""

    def build(self, site: Site) -> "DiffHeavisideMixer":
        """Validate and make the layer."""
        self.validate(site)
        return DiffHeavisideMixer(self, site)


class DiffHeavisideMixer(BracketMixer):
    """head_h = (1 - lambda_init) RMSNorm((A1 - λ step(A1 - λ A2)) v_g), or with the gate A1 step(A1 - λ A2)."""

    def __init__(self, config: DiffHeaviside, site: Site) -> None:
        super().__init__(config, site)
        self.gate = config.gate

    def bracket(self, first: Tensor, second: Tensor, lam: Tensor) -> Tensor:
        """Give the map [B, H, T, S]."""
        difference = first - lam * second
        # The second term is 0 and has the gradient of the difference.
        step = (difference > 0).to(difference.dtype) + (difference - difference.detach())
        return first * step if self.gate else first - lam * step
