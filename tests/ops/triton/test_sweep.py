"""More calls against the reference: each restriction alone, odd lengths, head counts, widths, shapes of lam; slow."""

import pytest
import torch

from diffattn.ops.triton.operators import forward, infer
from support.kernel_cases import Case, assert_as_reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CAUSAL = {"is_causal": True}
DOCUMENTS = torch.tensor([[-1] * 2 + [3] * 20 + [7] * 40 + [-1] * 8])


def some(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3))


CASES = {
    "nothing restricted": Case(),
    "causal, grouped heads": Case(options=CAUSAL),
    "more queries than keys": Case(queries=37, keys=20, options=CAUSAL),
    "one query": Case(queries=1, keys=35, options=CAUSAL),
    "one key": Case(queries=3, keys=1),
    "whole blocks": Case(queries=32, keys=64, options=CAUSAL),
    "several whole blocks behind the diagonal": Case(queries=70, keys=130, options=CAUSAL),
    "a window over several blocks": Case(queries=90, keys=90, options={"is_causal": True, "window": 50}),
    "a window of one": Case(queries=40, keys=40, options={"is_causal": True, "window": 1}),
    "packed documents": Case(queries=70, keys=70, options={"is_causal": True, "documents": DOCUMENTS}),
    "documents in any order": Case(options={"documents": (3 * some(1, 35)).long() - 1}),
    "documents of 32 bits, fewer queries": Case(keys=70, options={"documents": DOCUMENTS.int()}),
    "key lengths": Case(batch=3, keys=70, options={"is_causal": True, "key_lengths": torch.tensor([64, 11, 0])}),
    "key lengths, not causal": Case(batch=2, keys=70, options={"key_lengths": torch.tensor([70, 33])}),
    "documents in a cache": Case(keys=70, options={"documents": DOCUMENTS, "key_lengths": torch.tensor([50])}),
    "alibi": Case(options={"alibi": torch.tensor([0.5, 0.1])}),
    "a bool mask per head": Case(options={"attn_mask": some(2, 20, 35) < 0.4}),
    "a bool mask of keys": Case(options={"attn_mask": some(1, 1, 1, 35) < 0.4, "is_causal": True}),
    "a float mask of queries": Case(options={"attn_mask": some(20, 1)}),
    "a float mask in 64 bits": Case(options={"attn_mask": some(20, 35).double()}),
    "everything hidden": Case(lam=0.5, options={"attn_mask": torch.eye(20, 35) > 2}),
    "a scale below zero": Case(options={"is_causal": True, "scale": -0.3}),
    "a scale of zero": Case(lam=0.5, options={"attn_mask": some(20, 35) < 0.4, "scale": 0.2}),
    "two groups of three heads": Case(heads=6, groups=2, lam=(6, 1, 1), options=CAUSAL),
    "shared keys in groups": Case(heads=4, groups=2, shared_keys=True, lam=(1, 4, 20, 1), options=CAUSAL),
    "lam a number": Case(lam=1.7, options=CAUSAL),
    "lam a scalar": Case(lam=(), options=CAUSAL),
    "lam per batch": Case(batch=2, lam=(2, 1, 1, 1), options=CAUSAL),
    "lam per token": Case(lam=(20, 1), options=CAUSAL),
    "lam per head and token, in 16 bits": Case(lam=(1, 2, 20, 1), dtype=torch.float16, options=CAUSAL),
    "widths that are no power of two": Case(width=24, value_width=40, options=CAUSAL),
    "narrow heads": Case(width=4, value_width=8, options=CAUSAL),
    "wide heads": Case(width=64, value_width=128, dtype=torch.float16, options=CAUSAL),
    "V in two slices": Case(heads=1, width=16, value_width=264, lam=(), options=CAUSAL),
    "V in two slices, decoding": Case(heads=1, queries=2, value_width=264, lam=(), options=CAUSAL),
    "one accumulator": Case(value_width=136, options={"is_causal": True, "window": 20}),
    "one map": Case(maps=1, options=CAUSAL),
    "one map, 16 bits": Case(maps=1, dtype=torch.float16, options=CAUSAL),
    "a sink with empty rows": Case(maps=1, sink=True, options={"attn_mask": some(20, 1) < 0.6}),
    "a sink, decoding": Case(maps=1, sink=True, queries=2, keys=70, options=CAUSAL),
    "a window, decoding": Case(queries=3, keys=100, options={"is_causal": True, "window": 40}),
    "more rows than one program takes, decoding": Case(heads=12, queries=7, lam=(), options=CAUSAL),
    "alibi, decoding": Case(queries=2, keys=70, options={"is_causal": True, "alibi": torch.tensor([0.5, 0.1])}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_give_what_the_reference_gives(name: str) -> None:
    assert_as_reference(CASES[name], "triton")


def test_the_operators_keep_torchs_contract() -> None:
    """Schema, fake results, registration of the gradient, and tracing by AOTAutograd with unknown sizes."""
    q1, k1, q2, k2, v = (torch.randn(1, 1, 17, 16, requires_grad=True) for _ in range(5))
    lam = torch.rand(1, 1, 17, 1, requires_grad=True)
    rest = (None, None, None, None, None, True, None, 0.25)
    torch.library.opcheck(forward, (q1, k1, q2, None, v, lam, *rest))
    torch.library.opcheck(infer, tuple(x.detach() for x in (q1, k1, q2, k2, v, lam)) + rest)
