"""The operators in a graph of torch.compile, without a break."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from diffattn.ops import attention, diff_attention
from diffattn.ops.normed import normed_diff_attention
from support.implementations import serving

OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "everything": {
        "is_causal": True,
        "window": 4,
        "documents": torch.tensor([[0] * 3 + [1] * 5]),
        "key_lengths": torch.tensor([7]),
        "alibi": torch.tensor([0.5, 0.25]),
        "attn_mask": torch.zeros(8, 8),
    },
}


@pytest.mark.parametrize("impl", serving(torch.float32, 16))
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients_of_the_compiled_graph(name: str, impl: str) -> None:
    leaves = [torch.randn(1, heads, 8, 16, requires_grad=True) for heads in (2, 1, 2, 1)]
    leaves += [torch.randn(1, 1, 8, 32, requires_grad=True), torch.rand(2, 1, 1, requires_grad=True)]

    def run(*x: torch.Tensor) -> torch.Tensor:
        q1, k1, _, _, v, _ = x
        normed = normed_diff_attention(*x, None, 1e-5, 0.8, **OPTIONS[name], impl=impl)
        plain = diff_attention(*x, **OPTIONS[name], impl=impl)
        return normed + plain + attention(q1, k1, v, **OPTIONS[name], sink=x[5].flatten(), impl=impl)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_close(compiled(*leaves), run(*leaves))
    found = torch.autograd.grad(compiled(*leaves).sin().sum(), leaves)
    # float32 sums in another order: the compiled graph takes torch's unfused path where the eager call does not.
    assert_close(found, torch.autograd.grad(run(*leaves).sin().sum(), leaves), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [-5, 100, 10**8])
def test_a_compiled_graph_reads_nothing_behind_the_keys(wrong: int) -> None:
    """It cannot check key lengths; they end at the keys that there are."""
    q, k, v = (torch.randn(2, 2, 33, 16) for _ in range(3))
    compiled = torch.compile(
        lambda lengths: diff_attention(q, k, -q, k, v, 0.5, key_lengths=lengths), backend="aot_eager", fullgraph=True
    )
    found = compiled(torch.tensor([33, 33 + wrong if wrong > 0 else wrong]))
    assert found.isfinite().all()
    assert_close(found[0], diff_attention(q, k, -q, k, v, 0.5)[0])
