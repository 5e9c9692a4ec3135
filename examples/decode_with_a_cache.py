"""Cached decoding with a layer: a prompt, then token by token, equals the whole sequence at once."""

import torch

import diffattn

layer = diffattn.layer("diff_v1", width=64, heads=4, kv_heads=2)
x = torch.randn(1, 12, 64)

cache = layer.new_cache(batch=1, capacity=32)
pieces = [layer(x[:, :8], cache=cache)]  # the prompt
for step in range(8, 12):
    pieces.append(layer(x[:, step : step + 1], cache=cache))  # one token each

error = (torch.cat(pieces, dim=1) - layer(x)).abs().max().item()
print(f"largest difference to the whole sequence at once: {error:.1e}")
assert error < 1e-5
