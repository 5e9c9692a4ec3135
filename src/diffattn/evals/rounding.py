"""A model whose attention logits, weights or activations are rounded to a few bits: evenly, scaled by the largest.

B rows, H output heads, T queries, S keys.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffattn.model.decoder import Decoder
from diffattn.ops.call import Call
from diffattn.ops.dispatch import IMPLEMENTATIONS
from diffattn.ops.masks import build_mask, visibility
from diffattn.ops.reference import compute_dtype, grouped_product, masked_softmax, products
from diffattn.ops.rows import View
from diffattn.variants.base import check_whole
from diffattn.variants.entries import EntryMixer
from diffattn.variants.parts import wide

Per = Literal["tensor", "head", "row"]
OVER: dict[Per, tuple[int, ...]] = {"tensor": (-3, -2, -1), "head": (-2, -1), "row": (-1,)}
"""Dimensions of logits [B, H, T, S] that share a scale; never those of two rows of a batch."""
By = Literal["auto", "torchao", "simulated"]
Alter = Callable[[Tensor, Tensor | None], Tensor]
ALTERED = "altered logits"
"""How the names of operators' implementations begin while logits are altered, each model's by its own."""


def rounded(x: Tensor, bits: int, over: tuple[int, ...], visible: Tensor | None = None) -> Tensor:
    """Round x to 2^bits - 1 evenly spaced values from -a to a, a the largest |x| over these dimensions.

    visible: bool, broadcastable to x: what else there is has no part in a. Where a is 0 the result is. Computed in
    float32 (float64 for float64), given in x's dtype. ValueError: bits not from 2 to 16; NaN or infinity.
    """
    values, most = wide(x), 2 ** (bits - 1) - 1
    step = _largest(values, bits, over, visible) / most
    # What is hidden may lie far outside.
    steps = (values / step.masked_fill(step == 0, 1.0)).round().clamp(-most, most)
    return (steps * step).to(x.dtype)


def rounded_rows(x: Tensor, bits: int) -> Tensor:
    """Round each row x[..., :] to 2^bits even values from half a step below -a to half a step below a, its largest |x|.

    They are torchao's signed integers times its symmetric scale a / (2^(bits - 1) - 1/2), in its order of operations:
    who rounds makes no difference. dtypes and errors as in `rounded`.
    """
    values, half = wide(x), 2 ** (bits - 1)
    step = _largest(values, bits, (-1,)) / (half - 0.5)
    steps = (values * (1.0 / step.masked_fill(step == 0, 1.0))).round().clamp(-half, half - 1)
    return (steps * step).to(x.dtype)


def _largest(values: Tensor, bits: int, over: tuple[int, ...], visible: Tensor | None = None) -> Tensor:
    check_bits(bits)
    size = values.abs() if visible is None else values.abs().masked_fill(~visible, 0.0)
    largest = size.amax(over, keepdim=True)
    if not largest.isfinite().all():
        raise ValueError(f"what is rounded to {bits} bits holds NaN or infinity: weights of this model are broken")
    return largest


def check_bits(bits: int) -> None:
    """Raise ValueError unless bits is a whole number from 2 to 16."""
    check_whole("bits", bits, 2)
    if bits > 16:
        raise ValueError(f"bits: got {bits}, needs at most 16")


@contextmanager
def logits_rounded(model: Decoder, bits: int, per: Per) -> Iterator[None]:
    """Within it the logits of each map, before bias and mask, are rounded, scaled by the largest that is visible.

    per: logits that share a scale, those of all heads (that a layer computes together), of a head, or of one query.
    The scale is taken anew in each call: "tensor" and "head" let a window's later queries set it for earlier ones, and
    decoding sees one query at a time. ValueError: a layer that cannot be served, NaN, and bits as in `rounded`.
    """
    check_bits(bits)
    if per not in OVER:
        raise ValueError(f"per: got {per!r}, needs one of {', '.join(OVER)}")
    _check_served(model)

    def alter(logits: Tensor, visible: Tensor | None) -> Tensor:
        return rounded(logits, bits, OVER[per], visible)

    with logits_altered(model, alter, whole=per != "row"):
        yield


@contextmanager
def logits_altered(model: Decoder, alter: Alter, whole: bool) -> Iterator[None]:
    """Within it the logits [B, H, T, S] of each map, every scale included, become alter(logits, visible).

    visible: bool, broadcastable to them; None: all are. The layers take their plain, unfused path. whole: all queries
    must be there at once; ValueError where a layer computes them in tiles, or where they are altered already.
    """
    mixers = [block.mixer for block in model.blocks()]
    if any("logits" in vars(mixer) or vars(mixer).get("impl", "").startswith(ALTERED) for mixer in mixers):
        raise ValueError("the logits of this model are altered already; end that first")
    changed: list[tuple[nn.Module, str, Any]] = []
    altered = _Altered(alter)
    name_of_altered = f"{ALTERED} {id(altered)}"
    IMPLEMENTATIONS[name_of_altered] = altered
    try:
        for mixer in mixers:
            if isinstance(mixer, EntryMixer):
                changed.append((mixer, "logits", None))
                vars(mixer)["logits"] = partial(_entry_logits, mixer.logits, alter, whole)
            elif "impl" in vars(mixer):
                changed.append((mixer, "impl", vars(mixer)["impl"]))
                vars(mixer)["impl"] = name_of_altered
        yield
    finally:
        for mixer, name, before in changed:
            vars(mixer).pop(name)
            if before is not None:
                vars(mixer)[name] = before
        del IMPLEMENTATIONS[name_of_altered]


class _Altered:
    """The equation as it is written, with altered logits."""

    FUSES_NORM = False

    def __init__(self, alter: Alter) -> None:
        self.alter = alter

    def unavailable(self) -> str | None:
        return None

    def refuses(self, call: Call) -> str | None:
        return None

    def run(self, call: Call) -> Tensor:
        q, k = call.queries[0], call.keys[0]
        sizes = (q.shape[2], k.shape[2], q.device, compute_dtype(q.dtype))
        mask, (visible, _) = build_mask(call.given, *sizes), visibility(call.given, *sizes)
        first, *second = (
            masked_softmax(self.alter(products(q, k, call.scale), visible), mask, call.sink)
            for q, k in zip(call.queries, call.keys, strict=True)
        )
        weights = first - call.lam * second[0] if second else first
        out = grouped_product(weights, call.v.to(weights.dtype))
        return out if mask.empty is None else out.masked_fill(mask.empty, 0.0)


def _entry_logits(
    make: Callable[[Tensor, Tensor, View], Tensor], alter: Alter, whole: bool, q: Tensor, k: Tensor, view: View
) -> Tensor:
    if whole and not view.whole:
        raise ValueError(
            f"maps of {view.keys} keys are computed here in tiles of {q.shape[2]} queries, so that no scale of a whole "
            'map is known: choose per "row", or shorter windows'
        )
    return alter(make(q, k, view), view.visible)


@torch.no_grad()
def _check_served(model: Decoder) -> None:
    """Raise ValueError unless all logits that each layer says it has pass through `logits_altered`."""
    tokens = torch.arange(min(8, model.config.vocab_size), device=model.head.device)[None]
    for layer, (mixer, x, where) in enumerate(model.captured(tokens)):
        named = f"layer {layer}, {model.config.mixer_at(layer).name}"
        own = torch.cat([products(q, k, 1.0) for q, k in mixer.logit_factors(x, where)], dim=1)
        if not own.isfinite().all():
            raise ValueError(f"{named}: its logits are not finite; weights of this model are NaN or far too large")
        met: list[Tensor] = []

        def meet(logits: Tensor, visible: Tensor | None, met: list[Tensor] = met) -> Tensor:
            met.append(logits)
            return logits

        with logits_altered(model, meet, whole=False):
            mixer(x, where)
        # Each head's logits must be among those that were met, to the rounding of another order of products.
        close = torch.finfo(x.dtype).eps ** 0.5 * own.abs().max()
        found = torch.cat(met, dim=1) if met else own[:, :0]
        apart = (own[:, :, None] - found[:, None]).abs().amax((-1, -2))
        if not (apart <= close).any(-1).all():
            raise ValueError(
                f"{named}: it makes logits in its own way, where nothing can round them; round weights alone"
            )


def weights_rounded(model: Decoder, bits: int, activations: bool, by: By = "auto") -> tuple[Decoder, str]:
    """Give a copy whose blocks' linear maps have rounded weights, and who rounded: "torchao 0.18.0", "simulated: why".

    Each output channel has its scale, taken from its largest weight. activations: what enters these maps is rounded
    too, each token scaled by its largest channel in each call. Both by `rounded_rows`, which agrees with torchao to
    float32. Embedding, output head, norms and single parameters stay as they are. by "auto": torchao where it can.
    ValueError: torchao was asked for and cannot; bits as in `rounded`.
    """
    check_bits(bits)
    words = "asked for"
    if by != "simulated":
        copied = copy.deepcopy(model)
        served, words = _with_torchao(copied, bits, activations)
        if served:
            return copied, words
        if by == "torchao":
            raise ValueError(f"torchao cannot serve {bits} bits: {words}; choose by simulated")
    copied = copy.deepcopy(model)
    for linear in _linears(copied):
        linear.weight = nn.Parameter(rounded_rows(linear.weight.detach(), bits), requires_grad=False)
        if activations:
            linear.register_forward_pre_hook(partial(_rounded_input, bits))
    return copied, f"simulated: {words}"


def _rounded_input(bits: int, _: nn.Module, arguments: tuple[Tensor]) -> Tensor:
    return rounded_rows(arguments[0], bits)


def _linears(model: Decoder) -> list[nn.Linear]:
    return [part for block in model.blocks() for part in block.modules() if isinstance(part, nn.Linear)]


def _not_of_enums(record: logging.LogRecord) -> bool:
    """Drop what torch tells the author of torchao, who registers an Enum as it is imported, and nobody else."""
    return "register_constant() on Enum subclasses" not in str(record.msg)


def _with_torchao(model: Decoder, bits: int, activations: bool) -> tuple[bool, str]:
    """Round in place; whether it could, and its name and version or why not."""
    # Without CUDA it would warn of each of its CUDA libraries.
    logging.getLogger("torchao").setLevel(logging.ERROR)
    trees = logging.getLogger("torch.utils._pytree")
    trees.addFilter(_not_of_enums)
    try:
        import torchao
        from torchao import quantization as ao
        from torchao.quantization.granularity import PerAxis
    except ImportError:
        return False, "torchao is not installed"
    finally:
        trees.removeFilter(_not_of_enums)
    name = f"torchao {torchao.__version__}"
    # It would set options of torch.compile for the whole process.
    configs: dict[tuple[int, bool], Callable[[], Any]] = {
        (8, False): lambda: ao.Int8WeightOnlyConfig(set_inductor_config=False),
        (8, True): lambda: ao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False),
        (4, False): lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)),  # pyright: ignore[reportAttributeAccessIssue]
    }
    if (bits, activations) not in configs:
        return False, f"{name} has no int{bits} {'weights and activations' if activations else 'weights'} of this kind"
    try:
        for block in model.blocks():
            ao.quantize_(block, configs[bits, activations]())
        with torch.no_grad():
            model.hidden(torch.zeros(1, 2, dtype=torch.int64, device=model.head.device))
    except Exception as error:  # what it serves depends on its version, the machine and the dtype
        return False, f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    if any(type(linear.weight) is nn.Parameter for linear in _linears(model)):
        return False, f"{name} left linear maps as they were"
    return True, name
