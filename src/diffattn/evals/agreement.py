"""How the two maps of each head relate: their angle, what the second tells of the first, and where they part.

B windows, H heads, T tokens of a window; maps are [B, H, T, T] and 0 where a query does not see a key.
"""

import torch
from torch import Tensor

from diffattn.evals.inside import LOSSES, PairInside
from diffattn.evals.seen import Frame
from diffattn.evals.sums import Sums, curve, over_batch, per_head


class PairSums:
    """Totals of A1 and A2 of one layer."""

    def __init__(self) -> None:
        self.sums = Sums()

    def add(self, first: Tensor, second: Tensor, lam: Tensor, frame: Frame) -> None:
        """Take in both maps, and λ broadcastable to [B, H, T, 1]."""
        lam = lam.expand(*first.shape[:3], 1)[..., 0]
        product, squares1, squares2 = _products(first, second)
        self.sums.add(
            rows=first.new_tensor(first.shape[0] * first.shape[2]),
            lam=over_batch(lam),
            product=over_batch(product),
            squares1=over_batch(squares1),
            squares2=over_batch(squares2),
        )
        counted = frame.visible
        if frame.answers is not None:
            counted = frame.visible & frame.rows[..., None] & ~frame.answers
            first, second = first * counted, second * counted
            product, squares1, squares2 = _products(first, second)
        self.sums.add(
            noise=counted.sum(),
            noise1=over_batch(first.sum(-1)),
            noise11=over_batch(squares1),
            noise22=over_batch(squares2),
            noise12=over_batch(product),
            noise1_scaled=over_batch(lam * product),
            noise_scaled=over_batch(lam.square() * squares2),
        )

    def add_divergence(self, parted: Tensor, losses: Tensor) -> None:
        """Take in the Jensen-Shannon divergence of each row [B, H, T] and the losses [B, T], NaN where unscored."""
        self.sums.add(parted=over_batch(parted))
        scored = losses.isfinite()
        loss, js = losses[scored].double(), parted.transpose(0, 1)[:, scored].double()
        edges = torch.tensor(LOSSES, device=loss.device, dtype=loss.dtype)
        # A loss of exactly 0 may come out below it.
        bins = torch.bucketize(loss.clamp(min=0), edges, right=True) - 1
        inside = torch.nn.functional.one_hot(bins, len(LOSSES)).double()
        self.sums.add(
            scored=scored.sum(),
            loss=loss.sum(),
            loss2=loss.square().sum(),
            js=js.sum(1),
            js2=js.square().sum(1),
            js_loss=js @ loss,
            in_bin=inside.sum(0),
            js_in_bin=js @ inside,
        )

    def result(self) -> PairInside:
        """Divide, once."""
        s = self.sums
        spread = s["noise11"] - s["noise1"].square() / s["noise"]
        best = s["noise12"] / s["noise22"]
        left = s["noise11"] - best * s["noise12"]
        left_learned = s["noise11"] - 2 * s["noise1_scaled"] + s["noise_scaled"]
        n = s["scored"]
        together = n * s["js_loss"] - s["js"] * s["loss"]
        apart = (n * s["js2"] - s["js"].square()) * (n * s["loss2"] - s["loss"].square())
        return PairInside(
            cosine=per_head(s["product"], (s["squares1"] * s["squares2"]).sqrt()),
            lam=per_head(s["lam"], s["rows"]),
            lam_least_squares=per_head(best),
            r2=per_head(1 - left / spread),
            r2_learned=per_head(1 - left_learned / spread),
            jensen_shannon=per_head(s["parted"], s["rows"]),
            js_loss_correlation=per_head(together, apart.clamp(min=0).sqrt()),
            js_by_loss=curve(s["js_in_bin"], s["in_bin"]),
        )


def jensen_shannon(first: Tensor, second: Tensor, entropies: tuple[Tensor, Tensor]) -> Tensor:
    """Divergence of the rows of two maps [..., T], each divided by its sum: [...] nats, between 0 and ln 2.

    entropies: of those rows, as `MapSums.add` gives them.
    """
    mean = first / (2 * first.sum(-1, keepdim=True)) + second / (2 * second.sum(-1, keepdim=True))
    # The smallest normal number: log(0) would make NaN of 0 log(0).
    mixed = -(mean * (mean + torch.finfo(mean.dtype).tiny).log_()).sum(-1)
    return (mixed - (entropies[0] + entropies[1]) / 2).clamp(min=0.0)


def _products(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A1 A2, A1^2 and A2^2, summed over keys: [B, H, T]."""
    return (first * second).sum(-1), first.square().sum(-1), second.square().sum(-1)
