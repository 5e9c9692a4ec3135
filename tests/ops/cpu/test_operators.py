"""The kernel as operators of torch: what graphs, counters, layouts and a second derivative see of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from diffattn.ops import attention, cpu, diff_attention
from diffattn.ops.call import Call
from diffattn.ops.cpu import build, library, operators
from diffattn.ops.cpu.arguments import Arguments, addressable, described
from diffattn.ops.masks import Restrictions
from diffattn.ops.normed import normed_diff_attention

B, H, G, T, S, D, E = 2, 4, 2, 20, 24, 16, 32
# Float32 on both sides, sums of at most 32 terms of order 1 in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
needs_kernel = pytest.mark.skipif(library.KERNEL is None, reason=f"the kernel does not run here: {library.UNAVAILABLE}")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def operands(grad: bool = False, queries: int = T, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q1, k1, q2, k2, v."""
    shapes = ((B, H, queries, D), (B, G, S, D), (B, H, queries, D), (B, G, S, D), (B, G, S, E))
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes]


def everything(grad: bool, mask: Tensor | None = None) -> Arguments:
    """Two maps, every restriction, a norm."""
    return Arguments(
        *operands(grad),
        lam=torch.rand(H, 1, 1, requires_grad=grad),
        sink=None,
        weight=torch.rand(E, requires_grad=grad),
        mask=mask,
        documents=torch.randint(-1, 2, (B, S), dtype=torch.int32),
        lengths=torch.tensor([S, 7]),
        alibi=torch.rand(H),
        is_causal=True,
        window=9,
        scale=0.3,
        eps=1e-5,
        gain=0.8,
    )


def one_map(grad: bool) -> Arguments:
    q, k, _, _, v = operands(grad)
    sink = torch.randn(H, requires_grad=grad)
    return Arguments(q, k, None, None, v, None, sink, None, None, None, None, None, False, 0, 0.3, None, 1.0)


def shared_keys(grad: bool) -> Arguments:
    return everything(grad, torch.rand(T, S) < 0.8)._replace(k2=None, weight=None, eps=None)


def test_the_kernel_runs_wherever_it_can_be_compiled(tmp_path: Path) -> None:
    reason = build.unsupported() or library.find(tmp_path, "avx2")[1]
    if shutil.which("g++") is None or "not compiled" not in str(reason):
        pytest.skip(f"no kernel can be had here: {reason}, g++ at {shutil.which('g++')}")
    assert library.UNAVAILABLE is None


@needs_kernel
@pytest.mark.parametrize("case", [everything, one_map, shared_keys])
class TestOpcheck:
    """torch's own check: the schema tells the truth, fakes and gradients match, symbolic shapes trace."""

    def test_forward(self, case: Callable[[bool], Arguments]) -> None:
        torch.library.opcheck(operators.forward, case(True))

    def test_inference(self, case: Callable[[bool], Arguments]) -> None:
        torch.library.opcheck(operators.inference, case(False))

    def test_backward(self, case: Callable[[bool], Arguments]) -> None:
        given = case(False)
        out, statistics, before_norm = operators.forward(*given)
        torch.library.opcheck(operators.backward, (*given, torch.randn_like(out), statistics, before_norm))


@needs_kernel
@pytest.mark.parametrize("case", [everything, one_map, shared_keys])
def test_the_eager_rule_and_the_operators_rule_give_the_same_bits(case: Callable[[bool], Arguments]) -> None:
    given = case(True)
    leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    outs = [rule(*given)[0] for rule in (operators.forward, operators.Eager.apply)]
    found = [torch.autograd.grad(out.sin().sum(), leaves) for out in outs]
    assert torch.equal(*outs)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@needs_kernel
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_of_torch_compile_hold_the_operator_without_a_break(dynamic: bool) -> None:
    def run(*x: Tensor) -> Tensor:
        return normed_diff_attention(*x, 0.4, None, 1e-5, 0.8, is_causal=True, impl="cpu")

    leaves = operands(grad=True)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert torch.equal(compiled(*leaves), run(*leaves))
    for a, b in zip(*(torch.autograd.grad(f(*leaves).sin().sum(), leaves) for f in (compiled, run)), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(compiled(*leaves), run(*leaves))


@needs_kernel
def test_autocast_changes_nothing() -> None:
    leaves = operands(grad=True)
    plain = diff_attention(*leaves, 0.4, impl="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        cast = diff_attention(*leaves, 0.4, impl="cpu")
        found = torch.autograd.grad(cast.sum(), leaves)
    assert torch.equal(plain, cast)
    assert all(torch.equal(a, b) for a, b in zip(found, torch.autograd.grad(plain.sum(), leaves), strict=True))


@needs_kernel
def test_strides_are_taken_as_they_are() -> None:
    heads = torch.randn(B, T, 2 * H, D)
    q1, q2 = heads.unflatten(2, (-1, 2)).unbind(3)
    cache = torch.randn(1, G, 2 * S, D)[:, :, :S].expand(B, -1, -1, -1)
    v = torch.randn(B, S, G, E).transpose(1, 2)
    mask = (torch.rand(T, 1, H) < 0.9).permute(2, 0, 1)
    given = Arguments(
        q1.transpose(1, 2), cache, q2.transpose(1, 2), None, v, torch.rand(B, 1, T, 1), *[None] * 2, mask, *[None] * 3,
        False, 0, 0.3, None, 1.0,
    )  # fmt: skip
    for before, after in zip(given, addressable(given), strict=True):
        assert before is after
    copies = Arguments(*(x.contiguous() if isinstance(x, Tensor) else x for x in given))
    assert torch.equal(operators.inference(*given), operators.inference(*copies))


@needs_kernel
def test_a_last_axis_that_is_not_contiguous_is_copied() -> None:
    q1, k1, q2, k2, v = operands()
    apart = [x.mT.contiguous().mT for x in (q1, k1, q2, k2, v)]
    assert torch.equal(diff_attention(*apart, 0.4, impl="cpu"), diff_attention(q1, k1, q2, k2, v, 0.4, impl="cpu"))
    leaves = operands(grad=True)
    out = diff_attention(*leaves, 0.4, impl="cpu")
    spread = torch.randn(B, H, E, T).mT
    found = [torch.autograd.grad(out, leaves, g, retain_graph=True) for g in (spread, spread.contiguous())]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@needs_kernel
def test_heads_of_results_and_gradients_join_without_a_copy() -> None:
    leaves = operands(grad=True)
    out = diff_attention(*leaves, 0.4, impl="cpu")
    for x in (out, *torch.autograd.grad(out.sum(), leaves)):
        assert x.transpose(1, 2).is_contiguous()


@needs_kernel
def test_a_second_key_that_is_a_view_of_the_first_has_its_own_gradient() -> None:
    q1, k, q2, _, v = operands()
    k1, k2 = k.requires_grad_(), k.detach().view_as(k).requires_grad_()
    assert k1.data_ptr() == k2.data_ptr()
    found = torch.autograd.grad(diff_attention(q1, k1, q2, k2, v, 0.4, impl="cpu").sin().sum(), (k1, k2))
    apart = k.detach().clone().requires_grad_()
    wanted = torch.autograd.grad(diff_attention(q1, k1, q2, apart, v, 0.4, impl="cpu").sin().sum(), (k1, apart))
    assert_close(found, wanted, **CLOSE)


@needs_kernel
@pytest.mark.parametrize("shape", [(), (1,), (H, 1, 1), (T, 1), (B, 1, 1, 1), (1, H, T, 1), (B, H, T, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_lam_has_its_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    lam = torch.rand(shape, dtype=dtype, requires_grad=True)
    x = operands()
    found, wanted = (
        torch.autograd.grad(diff_attention(*x, lam, impl=impl).sin().sum(), lam)[0] for impl in ("cpu", "reference")
    )
    assert found.dtype == dtype and found.shape == lam.shape
    # The sum runs over up to B * H * T * E terms of order 1; bfloat16 rounds it once.
    assert_close(found, wanted, rtol=1e-4 if dtype == torch.float32 else 2**-8, atol=1e-4)


@needs_kernel
@pytest.mark.parametrize("sink", [0.5, 200.0, -200.0, -torch.inf])
def test_the_gradient_of_the_sink_is_finite_where_rows_are_empty(sink: float) -> None:
    q, k, _, _, v = operands()
    mask = torch.rand(T, S) < 0.5
    mask[3] = False
    logits = torch.full((H,), sink, requires_grad=True)
    found, wanted = (
        torch.autograd.grad(attention(q, k, v, mask, sink=logits, impl=impl).sin().sum(), logits)[0]
        for impl in ("cpu", "reference")
    )
    assert_close(found, wanted.nan_to_num(), rtol=1e-4, atol=1e-4)


@needs_kernel
def test_flops_are_those_of_the_products() -> None:
    leaves = operands(grad=True)

    def counted(work: Callable[[], Any]) -> int:
        with FlopCounterMode(display=False) as counter:
            work()
        return counter.get_total_flops()

    cells = 2 * B * H * T * S
    out = diff_attention(*leaves, 0.4, impl="cpu")
    assert counted(lambda: diff_attention(*leaves, 0.4, impl="cpu")) == cells * (2 * D + E)
    assert counted(lambda: out.sum().backward()) == cells * (3 * 2 * D + 2 * E)
    with torch.no_grad():
        assert counted(lambda: attention(leaves[0], leaves[1], leaves[4], impl="cpu")) == cells * (D + E)


@needs_kernel
def test_a_second_derivative_is_refused_with_a_way_out() -> None:
    leaves = operands(grad=True)
    out = diff_attention(*leaves, 0.4, impl="cpu")
    first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative.*'reference'.*'sdpa'"):
        first[0].sum().backward()


@needs_kernel
def test_nothing_is_saved_where_no_gradient_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(kernel, name)

    kernel = library.KERNEL
    monkeypatch.setattr(library, "KERNEL", Spy())
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        diff_attention(*operands(), 0.4, impl="cpu")
        with torch.no_grad():
            diff_attention(*operands(grad=True, queries=operators.FEW_QUERIES), 0.4, impl="cpu")
        assert not saved
        diff_attention(*operands(grad=True, queries=1), 0.4, impl="cpu")
        assert saved
    assert called == ["diffattn_forward", "diffattn_decode", "diffattn_forward"]


@needs_kernel
@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_without_queries_or_keys_everything_is_zero(empty: str) -> None:
    sizes = {"batch": B, "queries": T, "keys": S, empty: 0}
    queries, keys = sizes["queries"], sizes["keys"]
    shapes = ((H, queries, D), (G, keys, D), (H, queries, D), (G, keys, D), (G, keys, E))
    leaves = [torch.randn(sizes["batch"], *shape, requires_grad=True) for shape in shapes]
    lam = torch.tensor(0.4, requires_grad=True)
    out = diff_attention(*leaves, lam, impl="cpu")
    for x in (out, *torch.autograd.grad(out.sum(), [*leaves, lam])):
        assert torch.equal(x, torch.zeros_like(x))


def test_the_kernel_works_with_the_threads_of_torch() -> None:
    assert described(one_map(False)).threads == torch.get_num_threads()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "float32 and bfloat16, not in float64"),
        ({"dtype": torch.float16}, "not in float16"),
        ({"width": 8}, "queries have width 8"),
        ({"width": 20}, "queries have width 20"),
        ({"width": 264}, "queries have width 264"),
        ({"value_width": 12}, "values have width 12"),
        ({"value_width": 520}, "values have width 520"),
        ({"mask": torch.zeros(T, S, requires_grad=True)}, "attn_mask requires grad"),
        ({"alibi": torch.zeros(H, requires_grad=True)}, "alibi requires grad"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    dtype, width = change.get("dtype", torch.float32), change.get("width", D)
    q, k = torch.randn(B, H, T, width, dtype=dtype), torch.randn(B, G, S, width, dtype=dtype)
    v = torch.randn(B, G, S, change.get("value_width", E), dtype=dtype)
    given = Restrictions(attn_mask=change.get("mask"), alibi=change.get("alibi"))
    found = cpu.refuses(Call((q, q), (k, k), v, 0.4, None, given, 0.3))
    assert found is not None and reason in found
