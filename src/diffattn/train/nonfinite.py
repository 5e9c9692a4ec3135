"""Where a non-finite loss began: the batch is run again with every module watched."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def locate(model: nn.Module, losses: Iterable[Callable[[], Tensor]]) -> str:
    """Name of the module whose output was first not finite, or of the weight whose gradient was.

    `losses`: one function per micro-batch that runs the model and gives the summed loss. The model's gradients are
    overwritten. Modules report when they end, so an inner one is named before the one around it; "head" is the output
    head and the loss behind it.
    """
    first: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: object, output: object) -> None:
            if not first and isinstance(output, Tensor) and not torch.isfinite(output).all():
                first.append(name)

        return look

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        for parameter in model.parameters():
            parameter.grad = None
        for loss in losses:
            value = loss()
            if not first and not torch.isfinite(value):
                first.append("head")
            if first:
                return first[0]
            value.backward()
    finally:
        for handle in handles:
            handle.remove()
    broken = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
    ]
    # Gradients flow from the output to the input: of several, the last in the model's order began it.
    return f"gradient of {broken[-1]}" if broken else "unknown: the batch is finite when it is run again"
