"""Results and gradients of the kernels against the reference; blocks are 16 queries by 32 keys here."""

import pytest
import torch

from diffattn.ops import diff_attention
from support.kernel_cases import Case, assert_as_reference

HIDDEN = torch.rand(20, 35, generator=torch.Generator().manual_seed(0)) < 0.5
EVERYTHING = {
    "is_causal": True,
    "window": 20,
    "documents": torch.tensor([[0] * 9 + [1] * 26]),
    "key_lengths": torch.tensor([33]),
    "alibi": torch.tensor([0.5, 0.1]),
    "attn_mask": torch.zeros(20, 35).masked_fill(HIDDEN, -torch.inf),
}
CASES = {
    "every restriction at once": Case(options=EVERYTHING),
    "shared keys, a bool mask with empty rows, lam per token, float16": Case(
        shared_keys=True,
        dtype=torch.float16,
        lam=(1, 20, 1),
        options={"attn_mask": ~HIDDEN & (torch.arange(20)[:, None] % 3 > 0)},
    ),
    "one map with a sink": Case(maps=1, sink=True, options={"is_causal": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_give_what_the_reference_gives(name: str) -> None:
    assert_as_reference(CASES[name], "triton")


def test_a_query_on_a_cache() -> None:
    """Two parts of the keys are read by programs of their own and put together."""
    generator = torch.Generator().manual_seed(1)
    q1, q2 = torch.randn(2, 1, 4, 1, 16, generator=generator)
    k1, k2 = torch.randn(2, 1, 2, 70, 16, generator=generator)
    v = torch.randn(1, 2, 70, 32, generator=generator)
    options = {"is_causal": True, "key_lengths": torch.tensor([61])}
    found = diff_attention(q1, k1, q2, k2, v, 0.7, **options, impl="triton")
    wanted = diff_attention(q1, k1, q2, k2, v, 0.7, **options, impl="reference")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_saturated_rows_send_back_nothing() -> None:
    """Each row sees one key, or one far above the rest, in both maps: the weights' derivatives are 0.

    In 16 bits the rounding of the result would leave 1e-3 if it entered them. What is left is the order of the two
    sums over the channels of V, 2e-7, times key and scale, 7.5.
    """
    q1 = 30 * torch.eye(16).half()[None, None]
    q1, q2, k = (x.clone().requires_grad_() for x in (q1, q1.roll(1, 2), q1))
    v = torch.randn(1, 1, 16, 32, generator=torch.Generator().manual_seed(2)).half()
    out = diff_attention(q1, k, q2, k, v, 0.3, is_causal=True, impl="triton")
    for gradient in torch.autograd.grad(out.float().sum(), (q1, q2, k)):
        assert gradient.abs().max() <= 1e-5
