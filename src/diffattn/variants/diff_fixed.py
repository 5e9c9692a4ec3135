"""Version 1 with a λ that is not learned."""

from dataclasses import dataclass

from diffattn.variants.base import Site, register
from diffattn.variants.diff_v1 import DiffV1, Lam, refuse_options
from diffattn.variants.parts import is_number


@register("diff_fixed")
@dataclass(frozen=True, kw_only=True)
class DiffFixed(DiffV1):
    """A1 - c A2 with a constant c: does it matter that λ is learned?

    head_h = (1 - c) RMSNorm((A1 - c A2) v_g); 1 - c stands for V1's 1 - lambda_init. c = -0.5 adds the maps. Weights
    start as V1's.
    """

    c: float = 0.5
    """What multiplies the second map, in every layer and head."""
    lam: Lam = "fixed"
    """Always fixed."""

    def start_of_lambda(self, site: Site) -> float:
        """Give c."""
        return self.c

    def validate(self, site: Site) -> None:
        """Raise ValueError for a λ beside c, and for a c that is no number or leaves no gain."""
        refuse_options(self, "lambda_init", "lam", why="whose λ is the constant c")
        if not is_number(self.c) or self.c == 1:
            raise ValueError(f"c: got {self.c!r}, needs a finite number other than 1 (the heads are times 1 - c)")
        super().validate(site)
