"""Synthetic tasks opened for a test, and a few hundred of their sequences."""

from functools import cache

import torch

from diffattn.data import Batch, Data, SyntheticData, open_data
from diffattn.data.synthetic import SyntheticTask


def opened(task: str, *, seed: int = 0, batch_size: int = 64, context: int = 64, **options: int) -> SyntheticTask:
    """A task with windows of 64 tokens, at its default sizes where none are given."""
    config = SyntheticData(task=task, **options)  # pyright: ignore[reportArgumentType]
    data = open_data(config, context=context, batch_size=batch_size, seed=seed)
    assert isinstance(data, SyntheticTask) and isinstance(data, Data)
    return data


def some(data: SyntheticTask, split: str) -> Batch:
    """A few hundred sequences of a split in one batch; leave it as it is, for others are given the same."""
    return _some(data.config, data.context, data.batch_size, data.seed, split)


@cache
def _some(config: SyntheticData, context: int, batch_size: int, seed: int, split: str) -> Batch:
    data = SyntheticTask(config, context=context, batch_size=batch_size, seed=seed)
    batches = [data.batch(step) for step in range(8)] if split == "train" else list(data.evaluation(split))  # pyright: ignore[reportArgumentType]
    return Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
