"""Each wrong argument is a ValueError that names it, says what it got and what it needs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from diffattn.ops import attention, attention_maps, diff_attention, diff_attention_maps, implementations

B, H, G, T, S, D, E = 2, 4, 2, 3, 5, 8, 16
OPERANDS = {"q1": (B, H, T, D), "k1": (B, G, S, D), "q2": (B, H, T, D), "k2": (B, G, S, D), "v": (B, G, S, E)}
meta = torch.device("meta")


def arguments(**changed: Any) -> dict[str, Any]:
    return {name: torch.randn(shape) for name, shape in OPERANDS.items()} | {"lam": 0.5} | changed


def randn(*shape: int) -> Tensor:
    return torch.randn(shape)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int64)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "3 dimensions": ({"q1": randn(B, T, D)}, r"q1: got shape \[2, 3, 8\], needs .* 4 dimensions"),
    "no tensor": ({"k1": [1.0]}, r"k1: got list, needs a tensor"),
    "queries differ": ({"q2": randn(B, H, T + 1, D)}, r"q2: got shape \[2, 4, 4, 8\], needs \[2, 4, 3, 8\]"),
    "second queries' heads": ({"q2": randn(B, G, T, D)}, r"q2: got shape \[2, 2, 3, 8\], needs \[2, 4, 3, 8\]"),
    "keys' width": ({"k1": randn(B, G, S, D + 1)}, r"k1: got shape \[2, 2, 5, 9\], needs \[2, 2, 5, 8\]"),
    "keys differ": ({"k2": randn(B, G, S + 1, D)}, r"k2: got shape \[2, 2, 6, 8\], needs \[2, 2, 5, 8\]"),
    "keys' batch": ({"k1": randn(1, G, S, D)}, r"k1: got shape \[1, 2, 5, 8\], needs \[2, 2, 5, 8\]"),
    "groups": (
        {"k1": randn(B, 3, S, D), "k2": randn(B, 3, S, D), "v": randn(B, 3, S, E)},
        r"k1: got 3 key/value heads for 4 query heads in q1, needs a divisor of 4",
    ),
    "values' heads": ({"v": randn(B, H, S, E)}, r"v: got shape \[2, 4, 5, 16\], needs \[2, 2, 5, any width\]"),
    "values' length": ({"v": randn(B, G, S - 1, E)}, r"v: got shape \[2, 2, 4, 16\], needs \[2, 2, 5, any width\]"),
    "dtype": ({"v": randn(B, G, S, E).double()}, r"v: got dtype torch.float64, needs torch.float32 like q1"),
    "integers": ({"q1": ones(B, H, T, D)}, r"q1: got dtype torch.int64, needs float16, bfloat16"),
    "device": ({"k2": torch.empty(B, G, S, D, device=meta)}, r"k2: got device meta, needs cpu like q1"),
    "lam's shape": ({"lam": randn(H)}, r"lam: got shape \[4\], needs .* \[2, 4, 3, 1\]"),
    "lam per channel": ({"lam": randn(B, H, T, E)}, r"lam: got shape \[2, 4, 3, 16\], needs .* \[2, 4, 3, 1\]"),
    "lam's dtype": ({"lam": ones()}, r"lam: got dtype torch.int64, needs a floating dtype"),
    "lam's device": ({"lam": torch.empty((), device=meta)}, r"lam: got device meta, needs cpu like q1"),
    "lam no number": ({"lam": "0.5"}, r"lam: got str, needs a number or a tensor"),
    "mask's shape": ({"attn_mask": randn(T, T)}, r"attn_mask: got shape \[3, 3\], needs .* \[2, 4, 3, 5\]"),
    "mask of 5": ({"attn_mask": randn(1, 1, 1, T, S)}, r"attn_mask: got shape \[1, 1, 1, 3, 5\], needs"),
    "mask's dtype": ({"attn_mask": ones(T, S)}, r"attn_mask: got torch.int64, needs a bool tensor"),
    "mask's device": ({"attn_mask": torch.empty(T, S, device=meta)}, r"attn_mask: got device meta, needs cpu"),
    "window alone": ({"window": 2}, r"window: got 2 with is_causal=False, needs is_causal=True"),
    "window of 0": ({"window": 0, "is_causal": True}, r"window: got 0, needs a whole number of keys, at least 1"),
    "half a window": ({"window": 1.5, "is_causal": True}, r"window: got 1.5, needs a whole number"),
    "documents of queries": ({"documents": ones(B, T)}, r"documents: got shape \[2, 3\], needs \[2, 5\]"),
    "documents' dtype": ({"documents": randn(B, S)}, r"documents: got torch.float32, needs .* int32 or int64"),
    "documents' device": ({"documents": ones(B, S).to(meta)}, r"documents: got device meta, needs cpu"),
    "lengths' shape": ({"key_lengths": ones(B, 1)}, r"key_lengths: got shape \[2, 1\], needs \[2\]"),
    "lengths no tensor": ({"key_lengths": 5}, r"key_lengths: got int, needs a tensor of int32 or int64"),
    "length too large": ({"key_lengths": torch.tensor([2, 6])}, r"key_lengths: got values from 2 to 6, needs 0 to 5"),
    "length below 0": ({"key_lengths": torch.tensor([-1, 5])}, r"key_lengths: got values from -1 to 5, needs 0 to 5"),
    "slopes of groups": ({"alibi": randn(G)}, r"alibi: got shape \[2\], needs \[4\] \(one number per output head\)"),
    "slopes' dtype": ({"alibi": ones(H)}, r"alibi: got torch.int64, needs a floating tensor"),
    "scale": ({"scale": float("inf")}, r"scale: got inf, needs a finite number"),
    "scale a tensor": ({"scale": randn()}, r"scale: got tensor\(.*\), needs a finite number"),
}


@pytest.mark.parametrize("impl", ["auto", *implementations()])
@pytest.mark.parametrize("name", WRONG)
def test_differential_attention_names_what_is_wrong(name: str, impl: str) -> None:
    changed, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        diff_attention(**arguments(**changed), impl=impl)


@pytest.mark.parametrize("name", [name for name, (changed, _) in WRONG.items() if not changed.keys() & {"v", "lam"}])
def test_the_maps_check_alike(name: str) -> None:
    changed, message = WRONG[name]
    given = arguments(**changed)
    del given["v"], given["lam"]
    with pytest.raises(ValueError, match=message):
        diff_attention_maps(**given)


@pytest.mark.parametrize(
    "name", [name for name, (changed, _) in WRONG.items() if not changed.keys() & {"q2", "k2", "lam"}]
)
def test_ordinary_attention_checks_alike(name: str) -> None:
    changed, message = WRONG[name]
    given = arguments(**changed)
    renamed = {new: given.pop(old) for new, old in (("q", "q1"), ("k", "k1"))}
    given = {key: x for key, x in given.items() if key not in ("q2", "k2", "lam")}
    with pytest.raises(ValueError, match=message.replace("q1", "q").replace("k1", "k")):
        attention(**renamed, **given)


@pytest.mark.parametrize(
    "sink, message", [(randn(G), r"sink: got shape \[2\], needs \[4\]"), (ones(H), r"sink: got torch")]
)
def test_a_wrong_sink(sink: Tensor, message: str) -> None:
    q, k, v = (torch.randn(OPERANDS[name]) for name in ("q1", "k1", "v"))
    with pytest.raises(ValueError, match=message):
        attention(q, k, v, sink=sink)
    with pytest.raises(ValueError, match=message):
        attention_maps(q, k, sink=sink)


def test_documents_need_as_many_keys_as_queries() -> None:
    q, k = torch.randn(1, 1, 4, 2), torch.randn(1, 1, 3, 2)
    with pytest.raises(ValueError, match="documents: got 3 keys for 4 queries, needs at least as many keys"):
        attention(q, k, k, documents=ones(1, 3))


def test_an_unknown_implementation_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="impl: got 'flash', needs 'auto' or one of 'reference', 'sdpa'"):
        diff_attention(**arguments(), impl="flash")


def test_implementations_says_what_runs_here() -> None:
    found = implementations()
    assert list(found)[:2] == ["reference", "sdpa"] and found["reference"] is None and found["sdpa"] is None
    assert all(reason is None or reason for reason in found.values())


def test_dropout_has_no_argument() -> None:
    """Two branches have no published meaning for it."""
    with pytest.raises(TypeError, match="dropout_p"):
        diff_attention(**arguments(), dropout_p=0.1)


@pytest.mark.parametrize("lam", [1, -0.5, 2.5, torch.tensor(0.1, dtype=torch.float64), torch.rand(T, 1), torch.rand(1)])
def test_every_number_and_every_shape_that_broadcasts_is_a_lam(lam: float | Tensor) -> None:
    assert diff_attention(**arguments(lam=lam)).isfinite().all()
