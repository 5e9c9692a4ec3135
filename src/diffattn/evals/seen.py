"""What a model does with a few windows of held-out tokens, caught by hooks that change nothing.

B windows, T tokens of each, H output heads, D and E widths of a key and a value, G key/value groups, W model width.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffattn.data.base import NOT_SCORED, Batch
from diffattn.evals.inside import DISTANCES
from diffattn.model.decoder import Decoder
from diffattn.ops.loss import token_losses
from diffattn.variants.base import Mixer, Where

TOKENS = 1024
"""Tokens looked at together, in whole windows: few enough for their maps to stay near the processor."""
LONGEST = 2048
"""Longer windows are cut to so many tokens: maps grow with their square."""


@dataclass
class Layer:
    """One layer's part in a forward pass."""

    mixer: Mixer
    residual: Tensor
    """[B, T, W]: the input of the block."""
    x: Tensor
    """[B, T, W]: the input of the attention."""
    where: Where
    hidden: Tensor = field(default_factory=lambda: torch.empty(0))
    """[B, T, W]: the output of the block."""
    heads: Tensor | None = None
    """[B, T, H E]: what is multiplied by W_O; None: the layer has no module `o`."""
    gradient: Tensor | None = None
    """d loss / d heads, the loss in nats summed over tokens; None: not asked for."""


@dataclass(frozen=True)
class Frame:
    """Which entries of the maps count: the same in every layer."""

    visible: Tensor
    """Bool, [B, 1, T, T]: who may attend to whom."""
    first: Tensor
    """[B, 1, T, 1]: the first key that each query sees."""
    later: Tensor
    """Bool, [B, 1, T]: keys that a later query sees."""
    distances: Tensor
    """[1, bins]: visible entries in each bin of `DISTANCES`."""
    answers: Tensor | None
    """Bool, [B, 1, T, T]: the key holds this query's answer; None: the data marks none."""
    rows: Tensor
    """Bool, [B, 1, T]: those with a marked answer where the data marks answers, else all."""

    def at_first(self, values: Tensor) -> Tensor:
        """Pick the entries of [B, H, T, T] at each query's first key, [B, H, T]."""
        return values.gather(-1, self.first.expand(-1, values.shape[1], -1, -1))[..., 0]


@dataclass(frozen=True)
class Seen:
    """A forward pass: its layers, which entries count, and what each token cost."""

    layers: list[Layer]
    frame: Frame
    losses: Tensor
    """[B, T] nats; NaN where nothing is scored."""


def chunks(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Batch windows anew, about `TOKENS` tokens together, without padding and cut to at most `LONGEST`.

    ValueError: no windows.
    """
    held: list[Batch] = []
    for batch in batches:
        for parts in zip(*(tensor.split(1) for tensor in batch), strict=True):
            real = (parts[2] >= 0)[0]
            window = Batch(*(part[:, real][:, :LONGEST] for part in parts))
            length = window.tokens.shape[1]
            if not length:
                continue
            if held and (held[0].tokens.shape[1] != length or (len(held) + 1) * length > TOKENS):
                yield _joined(held)
                held = []
            held.append(window)
    if not held:
        raise ValueError("there is nothing to look at: no batch holds a window")
    yield _joined(held)


def _joined(windows: list[Batch]) -> Batch:
    return Batch(*(torch.cat(columns) for columns in zip(*windows, strict=True)))


def look(model: Decoder, batch: Batch, *, answers: bool = False, gradients: bool = False) -> Seen:
    """Run the model on a batch; `answers` marks where they stand, `gradients` asks for those of the heads' outputs."""
    tokens, targets, documents = (part.to(model.head.device) for part in batch)
    with torch.set_grad_enabled(gradients), _listening(model) as layers:
        hidden = model.hidden(tokens, None if batch.mixed is None else documents)
        losses = token_losses(hidden, model.head, targets)
    known = [layer for layer in layers if layer.heads is not None]
    if gradients and known:
        found = torch.autograd.grad(losses.sum(), [layer.heads for layer in known if layer.heads is not None])
        for layer, gradient in zip(known, found, strict=True):
            layer.gradient = gradient
    for layer in layers:
        layer.residual, layer.x, layer.hidden = (x.detach() for x in (layer.residual, layer.x, layer.hidden))
        layer.heads = None if layer.heads is None else layer.heads.detach()
    marked = answer_keys(tokens, targets, documents)[:, None] if answers else None
    return Seen(layers, _frame(documents, marked), losses.detach().masked_fill(targets == NOT_SCORED, torch.nan))


def _frame(documents: Tensor, answers: Tensor | None) -> Frame:
    visible = (documents[:, None, :, None] == documents[:, None, None]).tril()
    return Frame(
        visible=visible,
        # argmax gives the first of equals.
        first=visible.int().argmax(-1, keepdim=True),
        later=visible.tril(-1).any(-2),
        distances=by_distance(visible.double()),
        answers=answers,
        rows=visible.any(-1) if answers is None else answers.any(-1),
    )


def by_distance(map: Tensor) -> Tensor:
    """Sum [B, H, T, T], 0 above the diagonal, over the entries of each bin of `DISTANCES` that T reaches: [H, bins]."""
    tokens = map.shape[-1]
    summed = map.sum(0).contiguous()
    # Row t begins at t * T: a step of T + 1 a row keeps the distance. What an entry before the first key reads instead
    # is the end of the row above, which lies above the diagonal.
    padded = F.pad(summed.flatten(1), (tokens - 1, 0))
    apart = padded.as_strided((len(summed), tokens, tokens), (padded.shape[1], tokens + 1, 1)).sum(1).flip(-1)
    edges = [edge for edge in DISTANCES if edge < tokens]
    return torch.stack([apart[:, a:b].sum(-1) for a, b in zip(edges, [*edges[1:], tokens], strict=True)], dim=-1)


def answer_keys(tokens: Tensor, targets: Tensor, documents: Tensor) -> Tensor:
    """Mark [B, T, T] for each scored query the earlier keys that hold its target right behind the query's own token.

    That is where recall and needle told the value of the asked key, and where induction's passage went on.
    """
    before = torch.roll(tokens, 1, dims=1)
    same = torch.roll(documents, 1, dims=1) == documents
    same[:, 0] = False
    holds = (tokens[:, None] == targets[..., None]) & (before[:, None] == tokens[..., None]) & same[:, None]
    return (holds & (documents[:, None] == documents[..., None])).tril()


@contextmanager
def _listening(model: Decoder) -> Iterator[list[Layer]]:
    """Collect the layers of the forward passes inside the block."""
    layers: list[Layer] = []
    blocks, hooks = model.blocks(), []
    residuals: list[Tensor] = []

    def enter(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        residuals.append(arguments[0])
        if torch.is_grad_enabled() and not arguments[0].requires_grad:  # nothing is trained: begin a graph here
            arguments[0].requires_grad_()

    def attend(mixer: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(mixer, Mixer)
        layers.append(Layer(mixer, residuals[-1], arguments[0], arguments[1]))

    def project(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        layers[-1].heads = arguments[0]

    def leave(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        layers[-1].hidden = output

    for block in blocks:
        hooks += [block.register_forward_pre_hook(enter), block.register_forward_hook(leave)]
        hooks.append(block.mixer.register_forward_pre_hook(attend))
        if isinstance(output := getattr(block.mixer, "o", None), nn.Module):
            hooks.append(output.register_forward_pre_hook(project))
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()
