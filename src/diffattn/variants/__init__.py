"""One file = one attention: its config, module, cost and initialisation."""

from diffattn.variants.base import get, load_plugin, names, register
from diffattn.variants.dropin import Layer, LayerCache, layer

__all__ = ["Layer", "LayerCache", "get", "layer", "load_plugin", "names", "register"]
