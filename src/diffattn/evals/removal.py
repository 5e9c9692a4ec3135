"""Parts of a model that can be taken out of it and put back: second maps, whose λ becomes 0, and heads.

Hooks do it; the model's own code and weights stay as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from diffattn.data.base import Batch
from diffattn.model.decoder import Decoder
from diffattn.variants.base import Mixer, Where
from diffattn.variants.parts import ProjectedMixer

SAMPLE = 64
"""Tokens on which it is looked up which parameters still do something."""


@dataclass(frozen=True)
class Unit:
    """What is removed at once: a head (or its second map), or the second maps of a layer that has one λ."""

    layer: int
    head: int | None = None

    def __str__(self) -> str:
        return f"layer {self.layer}" + ("" if self.head is None else f", head {self.head}")


Removal = Callable[[Decoder, Sequence[Unit]], AbstractContextManager[None]]


def second_maps(model: Decoder) -> list[Unit]:
    """List what can be removed one by one: each head's second map, or a layer's where one λ serves all its heads.

    ValueError: there are none, there is a λ without which the map is not A1, or maps are not finite.
    """
    tokens = torch.arange(min(8, model.config.vocab_size), device=model.head.device)[None]
    units: list[Unit] = []
    with torch.no_grad():
        for layer, (mixer, x, where) in enumerate(model.captured(tokens)):
            lam = mixer.lam(x)
            if lam is None:
                continue
            heads = [None] if lam.ndim == 0 else range(lam.shape[-1])
            found = [Unit(layer, head) for head in heads]
            named = f"layer {layer}, {model.config.mixer_at(layer).name}"
            with masked(model, found):
                first, *others = mixer.branches(x, where)
                left, alone = mixer.maps(x, where), (first.coefficient * first.map).expand_as(first.map)
            if not (left.isfinite().all() and alone.isfinite().all()):
                raise ValueError(f"{named}: its maps are not finite; weights of this model are NaN or far too large")
            # A layer that divides its map by its sum rounds once a key: for an entry of at most 1, once eps each.
            if not others or not torch.allclose(left, alone, rtol=0, atol=left.shape[-1] * torch.finfo(left.dtype).eps):
                raise ValueError(f"{named}: its λ multiplies no second map that could be removed")
            units += found
    if not units:
        raise ValueError(f"{model.config.mixer.name}: there is no λ, hence no second map that could be removed")
    return units


@contextmanager
def masked(model: Decoder, units: Sequence[Unit]) -> Iterator[None]:
    """Within it λ is 0 in these units."""
    blocks, heads = model.blocks(), _heads_by_layer(units)
    try:
        for layer, gone in heads.items():
            mixer = blocks[layer].mixer
            vars(mixer)["lam"] = partial(_masked, mixer.lam, gone)
        yield
    finally:
        for layer in heads:
            vars(blocks[layer].mixer).pop("lam", None)


def _masked(lam: Callable[[Tensor], Tensor | None], heads: list[int] | None, x: Tensor) -> Tensor:
    value = lam(x)
    assert value is not None, "a unit is named by its λ"
    gone = torch.full(value.shape[-1:], heads is None, device=value.device)
    if heads is not None:
        gone[heads] = True
    return value.masked_fill(gone, 0.0)


def all_heads(model: Decoder) -> list[Unit]:
    """List the heads of all layers; ValueError where a layer is not made of them."""
    units: list[Unit] = []
    for layer, block in enumerate(model.blocks()):
        if not isinstance(block.mixer, ProjectedMixer):
            raise ValueError(f"the baseline's layer {layer} has no heads that could be removed; give a softmax model")
        units += [Unit(layer, head) for head in range(block.mixer.heads)]
    return units


@contextmanager
def blanked(model: Decoder, units: Sequence[Unit]) -> Iterator[None]:
    """Within it these heads bring nothing to the output projection."""
    hooks = []
    try:
        for layer, heads in _heads_by_layer(units).items():
            mixer = model.blocks()[layer].mixer
            assert isinstance(mixer, ProjectedMixer) and heads is not None
            hooks.append(mixer.o.register_forward_pre_hook(partial(_blanked, heads, mixer.heads)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _blanked(gone: list[int], heads: int, _: nn.Module, arguments: tuple[Tensor]) -> Tensor:
    mask = torch.zeros(heads, 1, dtype=torch.bool, device=arguments[0].device)
    mask[gone] = True
    return arguments[0].unflatten(-1, (heads, -1)).masked_fill(mask, 0.0).flatten(-2)


def _heads_by_layer(units: Iterable[Unit]) -> dict[int, list[int] | None]:
    """Give the heads of each layer that is named; None where the layer is one unit."""
    layers: dict[int, list[int] | None] = {}
    for unit in units:
        layers[unit.layer] = None if unit.head is None else [*(layers.get(unit.layer) or []), unit.head]
    return layers


def parameters_gone(model: Decoder, order: Sequence[Unit], batch: Batch, removal: Removal) -> list[int]:
    """Count the parameters that do nothing without the first 0, 1, ... all units of an order.

    Those are they whose gradient is exactly 0 then: shared keys stay until the last head that reads them is gone.
    """
    tokens, documents = inputs_of(model, batch)
    calls = model.captured(tokens[:2, :SAMPLE], None if documents is None else documents[:2, :SAMPLE])
    idle, totals = [0] * len(calls), [0]
    for count, unit in enumerate(order, start=1):
        with removal(model, order[:count]):
            idle[unit.layer] = _idle(*calls[unit.layer])
        totals.append(sum(idle))
    return totals


def _idle(mixer: Mixer, x: Tensor, where: Where) -> int:
    # Of their own, since the model's may be frozen.
    weights = {name: weight.detach().requires_grad_() for name, weight in mixer.named_parameters()}
    with torch.enable_grad():
        y = torch.func.functional_call(mixer, weights, (x, where))
        found = torch.autograd.grad(y.square().sum(), list(weights.values()), allow_unused=True, materialize_grads=True)
    return sum(int((gradient == 0).sum()) for gradient in found)


def inputs_of(model: Decoder, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Give tokens and documents on the model's device; no documents where no window holds two."""
    device, documents = model.head.device, batch.mixed
    return batch.tokens.to(device), None if documents is None else documents.to(device)
