"""RMSNorm, SwiGLU and rotary: the one-pass kernels and the plain forms, against the formulas in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops.cpu import library
from diffattn.ops.pointwise import rms_norm, swiglu
from diffattn.ops.positions import apply_rotary, rotary_tables

EPS = 1e-5
Operation = Callable[..., Tensor]


@pytest.fixture(params=["kernel", "plain"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled kernel, and as on a machine without one."""
    if request.param == "plain":
        monkeypatch.setattr(library, "KERNEL", None)
    elif library.KERNEL is None:
        pytest.skip(f"the kernel does not run here: {library.UNAVAILABLE}")
    return request.param


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, weight, EPS)


def norm_formula(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def swiglu_formula(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + (-gate).exp()) * up


def rotary(x: Tensor) -> Tensor:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return apply_rotary(x, *rotary_tables(torch.arange(x.shape[2]) + 100, 6, dtype=dtype))


def rotary_formula(x: Tensor) -> Tensor:
    cos, sin = rotary_tables(torch.arange(x.shape[2]) + 100, 6, dtype=torch.float64)
    turned = torch.view_as_complex(x[..., :6].unflatten(-1, (3, 2)).contiguous()) * torch.complex(cos, sin)
    return torch.cat((torch.view_as_real(turned).flatten(-2), x[..., 6:]), dim=-1)


OPERATIONS: dict[str, tuple[Operation, Operation, tuple[tuple[int, ...], ...]]] = {
    # More rows than a part of the weight's gradient has, and widths that fill no whole number of registers.
    "norm": (norm, norm_formula, ((3, 45, 50), (50,))),
    "narrow norm": (norm, norm_formula, ((2, 5), (5,))),
    "one row": (norm, norm_formula, ((96,), (96,))),
    "swiglu": (swiglu, swiglu_formula, ((2, 7, 171), (2, 7, 171))),
    "rotary": (rotary, rotary_formula, ((2, 3, 5, 22),)),
}


def drawn(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, scale: float = 1.0) -> list[Tensor]:
    return [(scale * torch.randn(shape, dtype=torch.float64)).to(dtype).requires_grad_() for shape in shapes]


def gradients(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    along = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return torch.autograd.grad(out, inputs, along)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_and_gradients_are_the_formulas(form: str, name: str, dtype: torch.dtype) -> None:
    operation, formula, shapes = OPERATIONS[name]
    inputs = drawn(shapes, dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out, wanted = operation(*inputs), formula(*exact)
    assert out.dtype == dtype
    # float32: sums of at most 171 terms. bfloat16: the plain form rounds after each of up to four steps; gradients of
    # order 1 lose as much, and a weight's is a sum of 135 such rows.
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
    found = zip(gradients(out, inputs), gradients(wanted, exact), strict=True)
    for one, other in found:
        assert one.dtype == dtype
        scale = float(other.abs().max())
        assert_close(one.double(), other, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", ["norm", "swiglu", "rotary"])
def test_the_kernel_rounds_a_bfloat16_once(name: str) -> None:
    if library.KERNEL is None:
        pytest.skip(f"the kernel does not run here: {library.UNAVAILABLE}")
    operation, formula, shapes = OPERATIONS[name]
    inputs = drawn(shapes, torch.bfloat16)
    # Half a unit in the last of 8 bits, and the error of float32.
    assert_close(operation(*inputs).double(), formula(*(x.double() for x in inputs)), rtol=2**-8 + 1e-5, atol=1e-6)


@pytest.mark.parametrize("gate", [-200.0, -88.0, -20.0, 0.0, 20.0, 200.0])
def test_swiglu_is_finite_and_right_far_from_zero(form: str, gate: float) -> None:
    inputs = [torch.full((9,), value, requires_grad=True) for value in (gate, 3.0)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out, wanted = swiglu(*inputs), swiglu_formula(*exact)
    # e^-20 from a rounded exponent is right to 20 units in the last place.
    assert_close(out.double(), wanted, rtol=4e-6, atol=1e-30)
    for one, other in zip(gradients(out, inputs), gradients(wanted, exact), strict=True):
        assert_close(one.double(), other, rtol=4e-6, atol=1e-30)


def test_what_is_not_finite_stays_visible(form: str) -> None:
    x = torch.ones(3, 20)
    x[1, 4] = torch.nan
    assert norm(x, torch.ones(20)).isnan().any(-1).tolist() == [False, True, False]
    assert swiglu(x, torch.ones_like(x)).isnan().sum() == 1
    assert swiglu(torch.full((4,), torch.inf), torch.ones(4)).tolist() == [torch.inf] * 4


def test_a_row_of_zeros_has_finite_gradients(form: str) -> None:
    x, weight = torch.zeros(2, 16, requires_grad=True), torch.ones(16, requires_grad=True)
    out = norm(x, weight)
    assert torch.equal(out, torch.zeros(2, 16))
    to_x, to_weight = gradients(out, [x, weight])
    assert to_x.isfinite().all()
    assert torch.equal(to_weight, torch.zeros(16))


@pytest.mark.parametrize("name", ["norm", "swiglu", "rotary"])
def test_any_memory_layout_gives_the_same(form: str, name: str) -> None:
    operation, _, shapes = OPERATIONS[name]
    x, *rest = drawn(shapes, torch.float32)
    strided = torch.randn(*x.shape[:-2], x.shape[-1], 2 * x.shape[-2] + 1).mT[..., 1::2, :]
    strided = strided.copy_(x.detach()).requires_grad_()
    assert not strided.is_contiguous()
    out, other = operation(x, *rest), operation(strided, *rest)
    assert_close(out, other)
    assert_close(gradients(out, [x]), gradients(other, [strided]))
    broadcast = torch.ones(()).expand_as(out)
    once, again = (
        torch.autograd.grad(operation(x, *rest), x, along)[0] for along in (broadcast, broadcast.contiguous())
    )
    assert_close(once, again)


def test_nothing_gives_nothing(form: str) -> None:
    x = torch.randn(0, 8, requires_grad=True)
    weight = torch.ones(8, requires_grad=True)
    to_x, to_weight = gradients(norm(x, weight), [x, weight])
    assert to_x.shape == x.shape
    assert torch.equal(to_weight, torch.zeros(8))
    assert swiglu(x, x).shape == (0, 8)
    assert rotary(torch.randn(0, 2, 3, 8)).shape == (0, 2, 3, 8)
    assert rotary(torch.randn(2, 2, 0, 8)).shape == (2, 2, 0, 8)


@pytest.mark.parametrize("name", ["narrow norm", "swiglu", "rotary"])
def test_second_derivatives(form: str, name: str) -> None:
    """By finite differences in float64, and in float32 with the same numbers: the kernel's pass has none of its own."""
    operation, _, shapes = OPERATIONS[name]
    inputs = drawn(tuple((*shape[:-1], min(shape[-1], 8)) for shape in shapes), torch.float64)
    assert torch.autograd.gradgradcheck(operation, inputs)

    def twice(inputs: list[Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(operation(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), inputs)

    for one, other in zip(twice([x.detach().float().requires_grad_() for x in inputs]), twice(inputs), strict=True):
        # Third powers of numbers of order 1, in float32.
        assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_only_what_wants_a_gradient_gets_one_twice(form: str) -> None:
    x, weight = torch.randn(3, 8, requires_grad=True), torch.ones(8)
    (first,) = torch.autograd.grad(norm(x, weight).sum(), x, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), x)[0].isfinite().all()


def test_transforms_go_through_the_plain_form(form: str) -> None:
    x, weight = torch.randn(4, 3, 8), torch.rand(8)
    assert_close(torch.func.vmap(lambda row: norm(row, weight))(x), norm(x, weight))
    _, along = torch.func.jvp(lambda x: swiglu(x, x), (x,), (torch.ones_like(x),))
    exact = x.double().requires_grad_()
    assert_close(
        along.double(), torch.autograd.grad(swiglu_formula(exact, exact).sum(), exact)[0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("operation", [norm, swiglu])
def test_shapes_that_do_not_fit(form: str, operation: Operation) -> None:
    with pytest.raises(RuntimeError):
        operation(torch.ones(4, 8), torch.ones(6))


def test_autocast_leaves_the_dtype_of_what_it_is_given(form: str) -> None:
    x = torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x, torch.ones(8)).dtype == torch.float32
        assert swiglu(x.bfloat16(), x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["norm", "swiglu", "rotary"])
def test_threads_change_no_bit(name: str) -> None:
    """Tensors large enough to be shared among threads."""
    operation, _, shapes = OPERATIONS[name]
    larger = ((40, *shapes[0]), *shapes[1:]) if name == "norm" else tuple((40 * s[0], *s[1:]) for s in shapes)
    inputs = drawn(larger, torch.float32)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = operation(*inputs)
            results.append((out, *gradients(out, inputs)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_weight_of_any_layout(form: str) -> None:
    x = torch.randn(5, 64)
    for weight in (torch.full((1,), 2.0).expand(64), torch.randn(128)[::2]):
        assert_close(norm(x, weight), norm_formula(x, weight))


@pytest.mark.parametrize("operation", [swiglu, lambda x, y: norm(x, y)])
def test_one_tensor_given_twice_has_one_gradient(form: str, operation: Operation) -> None:
    """Also with a graph of the gradient, and its hooks run once."""
    x = torch.randn(64, requires_grad=True)
    x.register_hook(lambda grad: 2 * grad)
    once = torch.autograd.grad(operation(x, x).sum(), x)[0]
    assert_close(torch.autograd.grad(operation(x, x).sum(), x, create_graph=True)[0], once)
