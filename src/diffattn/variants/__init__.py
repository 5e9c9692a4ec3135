"""One file = one attention: its config, module, cost and initialisation."""

from diffattn.variants.base import get, names, register
from diffattn.variants.dropin import Layer, LayerCache, layer
from diffattn.variants.plugins import load_plugin, loaded_plugins

__all__ = ["Layer", "LayerCache", "get", "layer", "load_plugin", "loaded_plugins", "names", "register"]
