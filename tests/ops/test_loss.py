"""The loss over a large vocabulary: torch's cross-entropy, without the logits."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from diffattn.ops.loss import cross_entropy, token_losses

chunks = pytest.mark.parametrize("chunk", [None, 1, 7, 16, 50, 64])


def problem(dtype: torch.dtype = torch.float64, vocabulary: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.randn(2, 9, 6, dtype=torch.float64).to(dtype).requires_grad_()
    head = torch.randn(vocabulary, 6, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (2, 9))
    targets[0, :3] = -100
    targets[1, 8] = vocabulary - 1
    return hidden, head, targets


def by_torch(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    logits = hidden @ head.T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


@chunks
def test_values_and_gradients_are_torchs(chunk: int | None) -> None:
    hidden, head, targets = problem()
    weights = torch.randn(2, 9, dtype=torch.float64)
    found, wanted = token_losses(hidden, head, targets, chunk=chunk), by_torch(hidden, head, targets)
    assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((x * weights).sum(), (hidden, head)) for x in (found, wanted)]
    assert_close(*gradients, rtol=1e-11, atol=1e-11)


@chunks
def test_sum_and_count(chunk: int | None) -> None:
    hidden, head, targets = problem(torch.float32)
    total, count = cross_entropy(hidden, head, targets, chunk=chunk)
    assert total.shape == count.shape == () and total.dtype == torch.float32 and count.dtype == torch.int64
    assert count == 15
    assert_close(total, by_torch(hidden, head, targets).sum())
    total.backward()
    assert hidden.grad is not None and not hidden.grad[0, :3].any()


@chunks
def test_nothing_scored_is_zero_with_gradients_of_zero(chunk: int | None) -> None:
    hidden, head, _ = problem(torch.float32)
    total, count = cross_entropy(hidden, head, torch.full((2, 9), -100), chunk=chunk)
    total.backward()
    assert total == 0 and count == 0 and not hidden.grad.any() and not head.grad.any()


@chunks
def test_another_ignore_index(chunk: int | None) -> None:
    hidden, head, targets = problem()
    marked = torch.where(targets == -100, 3, targets)
    found = token_losses(hidden, head, marked, ignore_index=3, chunk=chunk)
    assert not found[marked == 3].any()
    assert_close(found[marked != 3], by_torch(hidden, head, targets)[marked != 3])


@chunks
def test_large_logits_do_not_overflow(chunk: int | None) -> None:
    hidden, head, targets = problem(torch.float32)
    found = token_losses(1e4 * hidden, head, targets, chunk=chunk)
    assert found.isfinite().all()
    assert_close(found, by_torch(1e4 * hidden, head, targets), rtol=1e-5, atol=1e-2)


@chunks
@pytest.mark.parametrize("dtype, rounding", [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)])
def test_16_bit_inputs_have_float32_statistics(dtype: torch.dtype, rounding: float, chunk: int | None) -> None:
    hidden, head, targets = problem(dtype)
    found = token_losses(hidden, head, targets, chunk=chunk)
    exact = [x.detach().double().requires_grad_() for x in (hidden, head)]
    wanted = by_torch(*exact, targets)
    # Logits are rounded once to 16 bits; a loss is the difference of one logit and a mean of logits.
    largest = float((exact[0] @ exact[1].T).detach().abs().max())
    assert found.dtype == torch.float32
    assert (found.double() - wanted).abs().max() <= 2 * rounding * largest
    gradients = torch.autograd.grad(found.sum(), (hidden, head))
    right = torch.autograd.grad(wanted.sum(), exact)
    for x, y in zip(gradients, right, strict=True):
        assert x.dtype == dtype
        assert (x.double() - y).norm() <= 4 * rounding * y.norm() * max(1.0, largest)


def test_a_sum_of_many_small_terms_is_not_lost_in_16_bits() -> None:
    """4096 equal logits: the loss is log 4096, whatever the dtype of the inputs."""
    hidden, head = torch.zeros(3, 2, dtype=torch.bfloat16), torch.zeros(4096, 2, dtype=torch.bfloat16)
    losses = token_losses(hidden, head, torch.tensor([0, 2000, 4095]))
    assert_close(losses, torch.full((3,), 4096.0).log())


class LargestTensor(TorchDispatchMode):
    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.numel())
        return out


@pytest.mark.parametrize("chunk, columns", [(64, 64), (None, 512)])
def test_logits_of_all_tokens_times_vocabulary_are_never_held(chunk: int | None, columns: int) -> None:
    tokens, vocabulary, width = 512, 2048, 8
    hidden = torch.randn(tokens, width, requires_grad=True)
    head = torch.randn(vocabulary, width, requires_grad=True)
    with LargestTensor() as seen:
        cross_entropy(hidden, head, torch.randint(0, vocabulary, (tokens,)), chunk=chunk)[0].backward()
    assert seen.largest <= max(tokens * columns, vocabulary * width)


def test_nothing_of_the_size_of_a_chunk_waits_for_the_backward_pass() -> None:
    hidden, head, targets = problem(torch.float32)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        token_losses(hidden, head, targets, chunk=16)
    assert max(kept) <= max(hidden.numel(), head.numel())


def test_autocast_computes_logits_in_its_dtype_and_statistics_in_float32() -> None:
    hidden, head, targets = problem(torch.float32)
    narrow = [x.detach().bfloat16() for x in (hidden, head)]
    for chunk in (None, 16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = token_losses(hidden, head, targets, chunk=chunk)
        assert_close(losses, token_losses(*narrow, targets, chunk=chunk))
        assert torch.autograd.grad(losses.sum(), hidden)[0].dtype == torch.float32


@pytest.mark.parametrize("vocabulary", [50, 600])
def test_it_compiles(vocabulary: int) -> None:
    hidden, head, targets = problem(torch.float32, vocabulary)
    compiled = torch.compile(lambda *x: cross_entropy(*x)[0], backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(hidden, head, targets), (hidden, head))
    assert_close(found, torch.autograd.grad(cross_entropy(hidden, head, targets)[0], (hidden, head)))


@chunks
@pytest.mark.parametrize("target", [50, -1, -99])
def test_a_target_outside_the_vocabulary(target: int, chunk: int | None) -> None:
    hidden, head, targets = problem()
    targets[1, 2] = target
    with pytest.raises(ValueError, match=f"targets: got {target}, needs 0 to 49, or -100"):
        token_losses(hidden, head, targets, chunk=chunk)


def test_where_targets_cannot_be_looked_at_the_loss_of_one_outside_is_not_a_number() -> None:
    """On a GPU, looking would wait for it; in a compiled graph it cannot be done."""
    hidden, head, targets = problem()
    targets[1, 2] = 50
    losses = torch.compile(token_losses, backend="aot_eager", fullgraph=True)(hidden, head, targets, chunk=16)
    assert losses[1, 2].isnan() and losses.isnan().sum() == 1


def test_arguments_that_do_not_fit() -> None:
    hidden, head, targets = problem()
    with pytest.raises(ValueError, match=r"head: got \[50, 5\] for hidden \[2, 9, 6\], needs \[vocabulary, width\]"):
        token_losses(hidden, head[:, :5], targets)
    with pytest.raises(ValueError, match=r"head: got torch.float32 with hidden of torch.float64"):
        token_losses(hidden, head.float(), targets)
    with pytest.raises(ValueError, match=r"targets: got \[2, 8\] of torch.int64, needs integers \[2, 9\]"):
        token_losses(hidden, head, targets[:, :8])
    with pytest.raises(ValueError, match=r"targets: got \[2, 9\] of torch.float32"):
        token_losses(hidden, head, targets.float())
    with pytest.raises(ValueError, match="chunk: got 0"):
        token_losses(hidden, head, targets, chunk=0)
