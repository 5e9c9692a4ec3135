"""From a config to a trained model folder.

The names load on first use: configs need no training machinery.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffattn.train.config import RunConfig, TrainConfig
    from diffattn.train.trainer import Outcome, train

_HOMES = {"RunConfig": "config", "TrainConfig": "config", "Outcome": "trainer", "train": "trainer"}
__all__ = ["Outcome", "RunConfig", "TrainConfig", "train"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffattn.train' has no attribute {name!r}")
    return getattr(importlib.import_module(f"diffattn.train.{_HOMES[name]}"), name)
