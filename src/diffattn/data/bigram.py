"""The loss of a smoothed bigram table: what counting pairs of tokens reaches, printed beside every loss."""

from diffattn.data.base import Data, Split


def bigram_loss(data: Data, split: Split, tokens: int | None = None) -> float | None:
    """Nats per scored token of a bigram table fitted on the training split; None for synthetic data."""
    raise NotImplementedError
