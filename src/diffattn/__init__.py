"""Differential attention for PyTorch: operators, layers, models and fair comparisons.

The names below are the public ones. They load on first use, so that `import diffattn` stays instant.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from diffattn.hub.convert import load, save
    from diffattn.hub.unilm import load_unilm
    from diffattn.ops import attention, diff_attention, diff_attention_maps, implementations
    from diffattn.variants import layer

_HOMES = {
    "attention": "ops",
    "diff_attention": "ops",
    "diff_attention_maps": "ops",
    "implementations": "ops",
    "layer": "variants",
    "load": "hub.convert",
    "save": "hub.convert",
    "load_unilm": "hub.unilm",
}
__all__ = [
    "attention",
    "diff_attention",
    "diff_attention_maps",
    "implementations",
    "layer",
    "load",
    "load_unilm",
    "save",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffattn' has no attribute {name!r}")
    return getattr(importlib.import_module(f"diffattn.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
