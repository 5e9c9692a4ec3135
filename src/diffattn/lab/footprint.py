"""Memory and executed FLOPs of a training step and of generation, counted without allocating anything.

The program itself runs, on fake tensors that have shapes and no values, while a ledger writes down which storages
exist. So every variant, size and implementation is counted as it is, with its temporary tensors. Not in the ledger:
what kernels allocate within themselves (tens of MB of packed matrices), the process, and what an allocator wastes.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from diffattn.data import TextData
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import Decoder
from diffattn.model.generate import PREFILL
from diffattn.ops.loss import cross_entropy
from diffattn.train.config import RunConfig, TrainConfig
from diffattn.train.optim import AdamW
from diffattn.train.start import train_only

Kind = Literal["weights", "gradients", "moments", "activations", "cache", "tokens", "temporary"]
"""What a storage is for. Activations: what the forward pass keeps for the backward pass. Temporary: the rest."""


# torch's registry knows its fused attention on GPUs only; the CPU's is counted here by torch's own rule.
_FUSED_ON_CPU: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_: sdpa_backward_flop_count(grad, q, k, v)
    ),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a training step and a generation are made of, beside the model."""

    batch_size: int = 8
    """Sequences in one forward pass, in training and in generation."""
    accumulate: int = 1
    """Micro-batches whose gradients are summed before one optimiser step."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of matrix products; training keeps weights, gradients and moments in float32, inference has weights in it."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")


@dataclass(frozen=True)
class Footprint:
    """Bytes, and FLOPs of the matrix products that were executed."""

    held: dict[Kind, int]
    """The most that each kind held at any time; those of `peak_parts` are what it held at the peak."""
    peak: int
    """Most bytes at one time."""
    peak_parts: dict[Kind, int]
    """What they were."""
    phase: str
    """When: forward, backward or update; prompt or token."""
    phases: dict[str, int]
    """Most bytes at one time in each phase."""
    flops: dict[str, int]
    """Executed in each phase."""


def training(config: ModelConfig, setting: Setting) -> Footprint:
    """Count one step of the trainer at full context: forward, loss, backward, clipping and AdamW, uncompiled."""
    with _fake() as ledger:
        model = Decoder(config)
        model.checkpoint_activations = setting.checkpoint_activations
        train_only(model, RunConfig(model=config, data=TextData(), train=TrainConfig()))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda of: ledger.file(of.grad, "gradients"))
        ledger.kind = "moments"
        optimiser = AdamW(model, betas=(0.9, 0.95), weight_decay=0.1)
        ledger.kind = "tokens"
        tokens = torch.zeros(setting.batch_size, config.context, dtype=torch.int64)
        ledger.kind = "temporary"
        loss = torch.zeros(())
        # From the second micro-batch on all are alike: the gradients are there already.
        passes = min(setting.accumulate, 2)
        for _ in range(passes):
            ledger.phase = "forward"
            with torch.autocast("cpu", torch.bfloat16, enabled=setting.precision == "bfloat16"):
                share = cross_entropy(model.hidden(tokens), model.head, tokens)[0] / tokens.numel()
            ledger.file_all("temporary", "activations")
            ledger.phase = "backward"
            share.backward()
            loss += share.detach()
        ledger.phase = "update"
        optimiser.step(loss, 1e-3, 1.0)
    found = ledger.found()
    return replace(found, flops={phase: flops // passes for phase, flops in found.flops.items()})


def inference(config: ModelConfig, setting: Setting) -> Footprint:
    """Count generation: a prompt of context - 1 tokens enters the cache, in pieces, then one token attends to it."""
    with _fake() as ledger, torch.no_grad():
        model = _stored_in(getattr(torch, setting.precision), config)
        ledger.kind = "cache"
        cache = model.new_cache(setting.batch_size, config.context)
        ledger.kind = "tokens"
        tokens = torch.zeros(setting.batch_size, config.context, dtype=torch.int64)
        prompt, last = tokens[:, :-1], tokens[:, -1:]
        ledger.kind = "temporary"
        for phase, pieces in (("prompt", prompt.split(PREFILL, dim=1)), ("token", (last,))):
            ledger.phase, state = phase, tokens
            for piece in pieces:
                state = model.hidden(piece, cache=cache)[:, -1]
            (state @ model.head.T).argmax(dim=-1)
    return ledger.found()


def _stored_in(dtype: torch.dtype, config: ModelConfig) -> Decoder:
    """The model with weights of this dtype; fake parameters cannot be converted once they are there."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return Decoder(config)
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _fake() -> Iterator["_Ledger"]:
    with FakeTensorMode(), _Ledger() as ledger:
        yield ledger


class _Ledger(TorchDispatchMode):
    """Every storage from its first tensor to its end; new ones are of the present kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kind: Kind = "weights"
        self.phase = "start"
        self.live: Counter[Kind] = Counter()
        self.held: Counter[Kind] = Counter()
        self.parts: dict[str, dict[Kind, int]] = {}
        self.flops: Counter[str] = Counter()
        self.storages: dict[int, tuple[Kind, int, weakref.ref[Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0  # Where the program reads a value (is a token outside the vocabulary?) it reads 0.
        out = func(*args, **(kwargs or {}))
        if count := _FUSED_ON_CPU.get(func.overloadpacket):
            self.flops[self.phase] += count(*(x.shape for x in args if isinstance(x, Tensor)))
        elif func.overloadpacket in flop_registry:
            self.flops[self.phase] += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._add(x)
        return out

    def file(self, x: Tensor | None, kind: Kind) -> None:
        """Say what an existing tensor is for."""
        assert x is not None
        self._move(x.untyped_storage()._cdata, kind)

    def file_all(self, kind: Kind, other: Kind) -> None:
        """Say that everything of a kind is of another one."""
        for key in [key for key, (old, _, _) in self.storages.items() if old == kind]:
            self._move(key, other)

    def found(self) -> Footprint:
        """Give what has been counted."""
        peaks = {phase: sum(parts.values()) for phase, parts in self.parts.items() if phase != "start"}
        phase = max(peaks, key=lambda phase: peaks[phase])
        return Footprint(dict(self.held), peaks[phase], self.parts[phase], phase, peaks, dict(self.flops))

    def _add(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.storages:
            self.storages[key] = self.kind, size, weakref.ref(storage, lambda _: self._end(key))
            self._change(self.kind, size)

    def _end(self, key: int) -> None:
        kind, size, _ = self.storages.pop(key)
        self.live[kind] -= size

    def _move(self, key: int, kind: Kind) -> None:
        old, size, watch = self.storages[key]
        self.storages[key] = kind, size, watch
        self.live[old] -= size
        self._change(kind, size)

    def _change(self, kind: Kind, size: int) -> None:
        self.live[kind] += size
        self.held[kind] = max(self.held[kind], self.live[kind])
        if sum(self.live.values()) > sum(self.parts.get(self.phase, {}).values()):
            self.parts[self.phase] = {kind: size for kind, size in self.live.items() if size}
