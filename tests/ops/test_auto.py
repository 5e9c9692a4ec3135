"""`auto` takes the implementation that was measured to be the faster one (benchmarks/sdpa_plans.py)."""

import pytest
import torch

from diffattn.ops import attention, diff_attention


def same_bits(impl: str, queries: int, keys: int, value: int) -> bool:
    q1, q2 = torch.randn(2, 1, 2, queries, 16)
    k1, k2 = torch.randn(2, 1, 2, keys, 16)
    v = torch.randn(1, 2, keys, value)
    runs = [diff_attention(q1, k1, q2, k2, v, 0.3, is_causal=True, impl=name) for name in ("auto", impl)]
    alone = [attention(q1, k1, v, is_causal=True, impl=name) for name in ("auto", impl)]
    return torch.equal(*runs) and torch.equal(*alone)


@pytest.mark.parametrize(
    "queries, keys, value", [(32, 32, 32), (96, 96, 32), (1, 700, 32), (1, 700, 16), (16, 700, 16)]
)
def test_small_maps_and_few_queries_go_to_the_formula(queries: int, keys: int, value: int) -> None:
    assert same_bits("reference", queries, keys, value)
    assert not same_bits("sdpa", queries, keys, value)


@pytest.mark.parametrize("queries, keys, value", [(128, 128, 32), (64, 64, 16), (17, 700, 32)])
def test_the_rest_goes_to_the_kernel(queries: int, keys: int, value: int) -> None:
    assert same_bits("sdpa", queries, keys, value)
    assert not same_bits("reference", queries, keys, value)
