"""Put differential attention into a model of your own: one line changes."""

import torch
from torch import nn

import diffattn


class Block(nn.Module):
    """A pre-norm block whose attention is chosen by name."""

    def __init__(self, variant: str, width: int, heads: int, layer: int, layers: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = diffattn.layer(variant, width=width, heads=heads, layer=layer, layers=layers)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


# The same number of parameters: a differential layer has half the output heads, each twice as wide.
x = torch.randn(2, 32, 64)
for variant, heads in (("softmax", 8), ("diff_v1", 4)):
    model = nn.Sequential(*(Block(variant, 64, heads, layer, 2) for layer in range(2)))
    loss = model(x).square().mean()
    loss.backward()
    print(f"{variant}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters, loss {loss:.3f}")
