"""What is held and what is copied, seen by recording every torch operation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from diffattn.ops import attention, diff_attention

COPIES = {
    "clone",
    "copy_",
    "_to_copy",
    "contiguous",
    "repeat",
    "repeat_interleave",
    "index_select",
    "index",
    "cat",
    "stack",
}


class Record(TorchDispatchMode):
    """Names of all operations, and how many elements each new tensor has."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor) and not func.is_view:
                self.sizes.append(x.numel())
        return out


def recorded(run: Callable[[], object]) -> Record:
    with Record() as record:
        run()
    return record


def projections(
    batch: int, heads: int, groups: int, tokens: int, width: int, value: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As a layer makes them: [B, T, heads, width] read as [B, heads, T, width]."""
    shapes = [(batch, tokens, 2 * heads, width), (batch, tokens, 2 * groups, width), (batch, tokens, groups, value)]
    q, k, v = (torch.randn(shape).transpose(1, 2) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize(
    "impl, layout", [("sdpa", "tokens first"), ("sdpa", "heads first"), ("reference", "heads first")]
)
@pytest.mark.parametrize("value", [8, 16])
def test_strided_views_cost_no_more_than_contiguous_tensors(value: int, impl: str, layout: str) -> None:
    """Every other head of a tensor, as layers pair them. (torch's batched product, which the reference uses, gathers
    operands whose tokens come first, whoever calls it.)"""
    q, k, v = projections(2, 4, 4, 32, 8, value)
    if layout == "heads first":
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    views = (q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v)

    def run(*operands: Tensor) -> Record:
        return recorded(lambda: diff_attention(*operands, 0.3, is_causal=True, impl=impl))

    strided, whole = run(*views), run(*(x.contiguous() for x in views))
    assert strided.names == whole.names and strided.sizes == whole.sizes
    assert not COPIES & set(strided.names)


def test_one_key_for_both_maps_is_padded_once_and_copied_never() -> None:
    q, k, v = projections(2, 4, 2, 32, 8, 16)
    k = k[:, ::2]
    record = recorded(lambda: diff_attention(q[:, 0::2], k, q[:, 1::2], k, v, 0.3, is_causal=True, impl="sdpa"))
    assert record.names.count("constant_pad_nd") == 3
    assert not COPIES & set(record.names)
    equal = recorded(lambda: diff_attention(q[:, 0::2], k, q[:, 1::2], k, k, 0.3, is_causal=True, impl="sdpa"))
    assert "constant_pad_nd" not in equal.names and not COPIES & set(equal.names)


def test_one_key_in_16_bits_is_widened_once() -> None:
    q, k, v = (x.bfloat16().contiguous() for x in projections(1, 2, 2, 16, 8, 16))
    k1, k2 = k[:, :2], k[:, 2:]
    counts = [
        recorded(lambda k2=k2: diff_attention(q[:, :2], k1, q[:, 2:], k2, v, 0.3, impl="reference")).names.count(
            "_to_copy"
        )
        for k2 in (k1, k2)
    ]
    assert counts[0] == counts[1] - 1


@pytest.mark.parametrize("impl", ["sdpa", "reference", "auto"])
@pytest.mark.parametrize("value", [8, 16])
def test_a_cache_is_not_repeated_for_each_head_of_a_group(value: int, impl: str) -> None:
    """One query on 512 keys: nothing of the size of the keys is made, but for the [B, H, 1, S] maps."""
    q, cache, values = torch.randn(1, 16, 1, 8), torch.randn(1, 4, 512, 8), torch.randn(1, 2, 512, value)
    lengths = torch.tensor([500])

    def run() -> None:
        diff_attention(
            q[:, 0::2], cache[:, 0::2], q[:, 1::2], cache[:, 1::2], values, 0.3,
            is_causal=True, key_lengths=lengths, impl=impl,
        )  # fmt: skip

    with torch.no_grad():
        assert max(recorded(run).sizes) <= 8 * 512


@pytest.mark.parametrize("value", [8, 16])
def test_training_with_sdpa_holds_no_map(value: int) -> None:
    tokens = 512
    q, k, v = (x.detach().requires_grad_() for x in projections(1, 2, 2, tokens, 8, value))

    def run() -> None:
        out = diff_attention(q[:, 0::2], k[:, 0::2], q[:, 1::2], k[:, 1::2], v, 0.3, is_causal=True, impl="sdpa")
        out.sum().backward()

    assert max(recorded(run).sizes) < tokens * tokens


def test_a_window_of_at_least_all_keys_needs_no_mask() -> None:
    q, k, v = projections(1, 2, 2, 64, 8, 8)
    names = recorded(lambda: attention(q, k, v.repeat(1, 2, 1, 1), is_causal=True, window=64, impl="sdpa")).names
    assert "where" not in names


def test_one_query_under_the_causal_rule_needs_no_mask() -> None:
    q, k, v = projections(1, 2, 2, 64, 8, 8)
    names = recorded(lambda: attention(q[:, :, -1:], k, v.repeat(1, 2, 1, 1), is_causal=True, impl="sdpa")).names
    assert not {"where", "le"} & set(names)
