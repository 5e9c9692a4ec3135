"""Softmax attention behind a gate: the control for version 2, whose λ is a gate too."""

from dataclasses import dataclass

from torch import Tensor, nn

from diffattn.variants.base import Branch, Draw, Site, Where, register
from diffattn.variants.parts import fill, wide
from diffattn.variants.softmax import Softmax, SoftmaxMixer


@register("output_gate")
@dataclass(frozen=True, kw_only=True)
class OutputGate(Softmax):
    """softmax(S) V * sigmoid(x W_g), a gate per head and token (arXiv 2505.06708)."""

    per_channel: bool = False
    """A gate for each channel of a head."""

    def gates(self, site: Site) -> int:
        """Count the gates of a token."""
        return self.heads * (self.key_dim(site) if self.per_channel else 1)

    def more_weights(self, site: Site) -> int:
        """Count the entries of W_g."""
        return site.width * self.gates(site)

    def build(self, site: Site) -> "OutputGateMixer":
        """Validate and make the layer."""
        self.validate(site)
        return OutputGateMixer(self, site)


class OutputGateMixer(SoftmaxMixer):
    """As `SoftmaxMixer`, each head (and its norm) times sigmoid(x W_g)."""

    def __init__(self, config: OutputGate, site: Site) -> None:
        super().__init__(config, site)
        self.gate = nn.Linear(site.width, config.gates(site), bias=False)

    def forward(self, x: Tensor, where: Where, state: dict[str, Tensor] | None = None) -> Tensor:
        """Map x [B, T, W] to [B, T, W]; see `Mixer.forward`."""
        heads = self.attend(x, where, state)
        return self.write((heads * self._gates(x)).to(heads.dtype))

    def branches(self, x: Tensor, where: Where) -> list[Branch]:
        """Give A with its gate, which is the mean over a head's channels where each has its own."""
        (branch,) = super().branches(x, where)
        return [Branch("A", self._gates(x).mean(-1, keepdim=True), branch.map)]

    def init_weights(self, draw: Draw) -> None:
        """Fill W_g with N(0, 1/W), so that gates start as sigmoid(N(0, 1)); the rest as in `SoftmaxMixer`."""
        super().init_weights(draw)
        fill(self.gate.weight, draw.normal("gate", self.gate.weight.shape, self.site.width**-0.5))

    def _gates(self, x: Tensor) -> Tensor:
        """[B, H, T, 1 or E]."""
        return wide(self.gate(x)).sigmoid().unflatten(-1, (self.heads, -1)).transpose(1, 2)
