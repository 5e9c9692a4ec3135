"""On the meta device, where tensors have shapes and no memory, everything gives a tensor of its shape."""

import pytest
import torch

from diffattn import attention, diff_attention, diff_attention_maps
from diffattn.model.decoder import Decoder
from diffattn.ops import attention_maps
from diffattn.variants import names
from support.models import small_config

X = torch.empty(2, 4, 10**6, 8, dtype=torch.bfloat16, device="meta")


@pytest.mark.parametrize("impl", ["auto", "reference", "sdpa"])
def test_operators(impl: str):
    k = X[:, :2]
    for found in (
        attention(X, k, k, is_causal=True, window=64, impl=impl),
        diff_attention(X, k, X, k, k, 0.5, is_causal=True, impl=impl),
    ):
        assert (found.shape, found.dtype, found.device.type) == (X.shape, X.dtype, "meta")


def test_maps():
    for found in (attention_maps(X, X, is_causal=True), *diff_attention_maps(X, X, X, X)):
        assert (found.shape, found.dtype) == ((2, 4, 10**6, 10**6), torch.float32)


@pytest.mark.parametrize("variant", names())
def test_models(variant: str):
    with torch.device("meta"):
        model, tokens = Decoder(small_config(variant)), torch.zeros(2, 12, dtype=torch.int64)
    assert model(tokens).shape == (2, 12, 40)
