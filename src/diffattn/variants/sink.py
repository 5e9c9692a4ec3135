"""Softmax with a learned logit for attending to nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffattn.variants.base import Draw, Site, register
from diffattn.variants.softmax import Softmax, SoftmaxMixer


@register("sink")
@dataclass(frozen=True, kw_only=True)
class Sink(Softmax):
    """exp(S) / (exp(b) + sum exp(S)) V: a learned sink logit b for each head."""

    def has_sink(self, site: Site) -> bool:
        """Every layer has one."""
        return True

    def vectors(self, site: Site) -> int:
        """Count the parameters beside the matrices: b too."""
        return super().vectors(site) + self.heads

    def build(self, site: Site) -> "SinkMixer":
        """Validate and make the layer."""
        self.validate(site)
        return SinkMixer(self, site)


class SinkMixer(SoftmaxMixer):
    """As `SoftmaxMixer` with one more key, of logit b_h and value 0."""

    def __init__(self, config: Sink, site: Site) -> None:
        super().__init__(config, site)
        self.sink = nn.Parameter(torch.empty(config.heads))

    def sink_logits(self, q: Tensor) -> Tensor | None:
        """Give b, [H]."""
        return self.sink

    def init_weights(self, draw: Draw) -> None:
        """Fill b with 0, which is `softmax1`; the rest as in `SoftmaxMixer`."""
        super().init_weights(draw)
        nn.init.zeros_(self.sink)
