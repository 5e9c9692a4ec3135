"""What every attention variant is made of: a frozen config, a module, its cost; and the register that finds them."""

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from torch import Tensor, nn

from diffattn.variants.draw import Draw

__all__ = ["Branch", "Cost", "Draw", "Mixer", "MixerConfig", "Site", "Where", "get", "names", "register"]


def check_whole(name: str, value: object, least: int) -> None:
    """Raise ValueError, naming the argument, unless the value is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: got {value!r}, needs a whole number of at least {least}")


@dataclass(frozen=True)
class Site:
    """The place in a model for which a layer is built."""

    width: int
    """Width of the residual stream, W."""
    layer: int = 0
    """Number of the layer, from 0; a single layer taken from a model need not know how many there are."""
    layers: int = 1
    """How many layers the model has."""
    context: int = 2048
    """Longest sequence in tokens; costs are given at this length."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for anything but whole numbers in range."""
        for field, least in (("width", 1), ("layer", 0), ("layers", 1), ("context", 1)):
            check_whole(field, getattr(self, field), least)


@dataclass(frozen=True, eq=False)
class Where:
    """Positions of the T new tokens and who may attend to whom; all restrictions combine."""

    positions: tuple[Tensor, Tensor] | None = None
    """Rotary (cos, sin), each [T, R/2] or [B, T, R/2]; None: no rotary."""
    key_positions: tuple[Tensor, Tensor] | None = None
    """The same for the keys, where theirs are other tables (xPos); None: those of the queries."""
    alibi: Tensor | None = None
    """[H]: slopes of a distance bias on the logits of every map, one for each output head; None: no bias."""
    attn_mask: Tensor | None = None
    """Boolean (True: may attend) or additive, broadcastable to [B, H, T, S]."""
    is_causal: bool = True
    """Aligned at the bottom right: the last query sees every key."""
    window: int | None = None
    """Keys that a query sees, its own position included; needs is_causal."""
    documents: Tensor | None = None
    """Ids of the keys, [B, S]; no attention across ids, negative ids are padding."""
    key_lengths: Tensor | None = None
    """[B]: keys from this index on do not exist; with a state, the length after this call's T tokens."""
    memory: Tensor | None = None
    """[B, S, W]: where keys and values come from in cross-attention; None: self-attention."""

    def restrictions(self) -> dict[str, Any]:
        """The arguments that the operators take as they are."""
        return {
            "attn_mask": self.attn_mask,
            "is_causal": self.is_causal,
            "window": self.window,
            "documents": self.documents,
            "key_lengths": self.key_lengths,
            "alibi": self.alibi,
        }


@dataclass(frozen=True)
class Cost:
    """What one layer costs; FLOPs are those of matrix products in a training step, per token at full context."""

    parameters: int
    """Exact number of parameters."""
    flops_algebra: int
    """Three times (forward and backward) the least forward work for this function; no credit for causality."""
    flops_executed: int
    """What torch's FlopCounterMode counts with the config's `impl` on a CPU."""
    cache_bytes: int
    """Bytes per token that decoding must remember, at 4 bytes per number."""


class Branch(NamedTuple):
    """One attention map and what it is multiplied by; a layer's effective map is the sum over branches."""

    name: str
    coefficient: Tensor
    """Broadcastable to [B, H, T, 1]."""
    map: Tensor
    """[B, H, T, S]."""


class Mixer(nn.Module):
    """Base class of the layers. Its weights have no values before `init_weights` is called."""

    refuses: frozenset[str] = frozenset()
    """Fields of `Where` that this layer has no meaning for."""
    heads: int
    """Output heads: those that slopes of a distance bias belong to."""
    head_dim: int
    """Width of one query or key head: the most channels that rotary can turn."""

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W].

        With a state the new keys and values are written in place at slots key_lengths - T .. key_lengths - 1 and the
        queries attend to the whole buffer. A state carries no gradients.
        """
        raise NotImplementedError

    def new_state(self, batch: int, capacity: int, device: Any = None, dtype: Any = None) -> dict[str, Tensor]:
        """Allocate what decoding must remember, zero-filled; device and dtype default to the weights'."""
        raise NotImplementedError

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give the attention maps of x [B, T, W] one by one; memory grows with T * S."""
        raise NotImplementedError

    def maps(self, x: Tensor, where: Where) -> Tensor:
        """Give the effective signed map [B, H, T, S]: what multiplies the values, before any norm behind it."""
        first, *rest = (branch.coefficient * branch.map for branch in self.branches(x, where))
        return sum(rest, first)

    def logit_factors(self, x: Tensor, where: Where) -> list[tuple[Tensor, Tensor]]:
        """Give for each map queries [B, N, T, D] and keys [B, G, S, D], N % G == 0, whose products are its logits.

        The logits are those before mask and position bias, every learned scale included.
        """
        raise NotImplementedError

    def lam(self, x: Tensor) -> Tensor | None:
        """Give λ: a scalar or [H] where it is a weight, [B, T, H] where it depends on x, None where there is none."""
        return None

    def mixing(self) -> Tensor | None:
        """Give the learned matrix [H, H] that mixes the heads' maps, row i for output head i; None: there is none."""
        return None

    def advance(self, share: float) -> None:
        """Take note that this share of the training's steps, 0 to 1, lies behind; most layers do not care."""

    def init_weights(self, draw: Draw) -> None:
        """Fill every parameter with its starting value."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MixerConfig:
    """Base class of the variants' configs; `register` gives each its name."""

    name: ClassVar[str] = ""
    implementations: ClassVar[tuple[str, ...] | None] = None
    """Those that can serve this variant; None: all."""
    refuses: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Where` that have no meaning for this variant: a call with one of them is a ValueError."""
    trains: ClassVar[tuple[str, ...]] = ()
    """Parameters of a layer that continues a loaded model; the rest of the model is left as it is, unless the training
    says otherwise. Empty: all train, and no loaded model is needed."""

    impl: str = "auto"
    """Implementation of the operator; one that cannot serve a call is an error."""

    @classmethod
    def describe(cls) -> str:
        """Give the first line of the docstring, which the command line shows."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    def validate(self, site: Site) -> None:
        """Raise ValueError where this config cannot stand at this site."""
        raise NotImplementedError

    def cost(self, site: Site) -> Cost:
        """Give parameters, FLOPs and cache of the layer at this site."""
        raise NotImplementedError

    def build(self, site: Site) -> Mixer:
        """Validate and make the layer, on torch's current default device; its weights await `init_weights`."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Give the fields and the variant's name, ready for JSON."""
        return {"name": self.name, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Undo `to_dict`; on the base class the name chooses the variant. ValueError for unknown names and fields."""
        given = dict(fields)
        kind = get(given.pop("name", cls.name))
        if not issubclass(kind, cls):
            raise ValueError(f"a config of {kind.name!r} was given where {cls.name!r} is needed")
        known = [field.name for field in dataclasses.fields(kind)]
        for field in given:
            if "dropout" in field:
                raise ValueError(
                    f"{field}: dropout inside attention maps has no published meaning for two maps and does not exist "
                    "here; leave it out, or drop out around the layer"
                )
            if field not in known:
                raise ValueError(f"{kind.name!r} has no option {field!r}{_nearest(field, known)}")
        return kind(**given)


C = TypeVar("C", bound=type[MixerConfig])
_REGISTER: dict[str, type[MixerConfig]] = {}


def register(name: str) -> Callable[[C], C]:
    """Make a config class known as the variant `name`; its file may lie in this folder or anywhere (`load_plugin`)."""

    def add(config: C) -> C:
        other = _REGISTER.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (config.__module__, config.__qualname__):
            raise ValueError(f"two variants are called {name!r}: {other.__module__} and {config.__module__}")
        config.name = name
        _REGISTER[name] = config
        return config

    return add


def names() -> list[str]:
    """List the registered variants in alphabetical order."""
    _find_files()
    return sorted(_REGISTER)


def get(name: str) -> type[MixerConfig]:
    """Give the config class of a variant; ValueError with the nearest name where there is none."""
    _find_files()
    if not isinstance(name, str) or name not in _REGISTER:
        raise ValueError(
            f"there is no variant {name!r}{_nearest(str(name), list(_REGISTER))}; one of your own comes with "
            "--plugin my_attention.py, in Python with diffattn.variants.load_plugin"
        )
    return _REGISTER[name]


def _find_files() -> None:
    package = importlib.import_module("diffattn.variants")
    for found in pkgutil.iter_modules(package.__path__, prefix="diffattn.variants."):
        importlib.import_module(found.name)


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (there are: {', '.join(sorted(known))})"
