"""Cross-entropy chunked over the vocabulary."""

from torch import Tensor


def token_losses(hidden: Tensor, head: Tensor, targets: Tensor, ignore_index: int = -100, chunk: int = 8192) -> Tensor:
    """Loss of each token, nats, 0 where ignored."""
    raise NotImplementedError


def cross_entropy(
    hidden: Tensor, head: Tensor, targets: Tensor, ignore_index: int = -100, chunk: int = 8192
) -> tuple[Tensor, Tensor]:
    """Sum of the losses and number of scored tokens."""
    raise NotImplementedError
