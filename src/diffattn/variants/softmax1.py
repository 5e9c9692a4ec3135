"""Softmax whose rows may sum to less than 1: "off by one"."""

from dataclasses import dataclass

from torch import Tensor

from diffattn.variants.base import Site, register
from diffattn.variants.softmax import Softmax, SoftmaxMixer


@register("softmax1")
@dataclass(frozen=True, kw_only=True)
class Softmax1(Softmax):
    """exp(S) / (1 + sum exp(S)) V: a head may attend to nothing."""

    last_layer: bool = True
    """Also in the last layer; False: that one keeps ordinary softmax."""

    def has_sink(self, site: Site) -> bool:
        """Whether exp(0) stands in this layer's denominator."""
        return self.last_layer or site.layer < site.layers - 1

    def build(self, site: Site) -> "Softmax1Mixer":
        """Validate and make the layer."""
        self.validate(site)
        return Softmax1Mixer(self, site)


class Softmax1Mixer(SoftmaxMixer):
    """As `SoftmaxMixer` with one more key, of logit 0 and value 0; it starts from the same weights."""

    def __init__(self, config: Softmax1, site: Site) -> None:
        super().__init__(config, site)
        self.has_sink = config.has_sink(site)

    def sink_logits(self, q: Tensor) -> Tensor | None:
        """Give 0 for each head: exp(0) = 1 in the denominator."""
        return q.new_zeros(self.heads) if self.has_sink else None
