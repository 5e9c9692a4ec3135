"""NaN that a query may attend shows in its result, however few keys there are."""

import pytest
import torch
from torch import Tensor

from diffattn.ops import attention, diff_attention
from support.implementations import serving, with_dtypes

every_impl = pytest.mark.parametrize("impl", ["auto", *serving(torch.float32, 16)])


def operands(queries: int, keys: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(1, 2, n, 16, generator=generator) for n in (queries, keys, keys))
    return q.to(dtype), k.to(dtype), v.to(dtype)


@with_dtypes(torch.float32, torch.float64, torch.bfloat16, width=16)
@pytest.mark.parametrize("keys", [1, 3, 5, 7, 8, 15, 16, 17])
def test_a_query_of_nan(keys: int, dtype: torch.dtype, impl: str) -> None:
    q, k, v = operands(20, keys, dtype)
    q[:, :, 3] = torch.nan
    for out in (attention(q, k, v, impl=impl), diff_attention(q, k, q, k, v, 0.5, impl=impl)):
        assert out.isnan().all(-1).nonzero()[:, 2].unique().tolist() == [3]


@every_impl
@pytest.mark.parametrize("tokens", [1, 2, 5, 17])
def test_a_first_key_of_nan_under_the_causal_rule(tokens: int, impl: str) -> None:
    q, k, v = operands(tokens, tokens, torch.float32)
    k[:, :, 0] = torch.nan
    assert attention(q, k, v, is_causal=True, impl=impl).isnan().all()
    assert diff_attention(q, k, q, k, v, 0.5, is_causal=True, impl=impl).isnan().all()


@every_impl
def test_no_queries_with_documents(impl: str) -> None:
    q, k, v = operands(0, 5, torch.float32)
    documents = torch.zeros(1, 5, dtype=torch.int64)
    assert attention(q, k, v, documents=documents, is_causal=True, impl=impl).shape == (1, 2, 0, 16)
