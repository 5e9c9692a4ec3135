"""What the machine can do."""

import platform
import subprocess
import sys

import pytest
import torch

from diffattn.train import profile

CPU = torch.device("cpu")


@pytest.mark.parametrize(("instructions", "chosen"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_takes_bfloat16_only_where_the_machine_multiplies_it(monkeypatch, instructions, chosen):
    monkeypatch.setattr(profile, "has_bfloat16", lambda device: instructions)
    assert profile.choose_precision("auto", CPU) == chosen
    assert profile.choose_precision("float32", CPU) == torch.float32


def test_emulated_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(profile, "has_bfloat16", lambda device: False)
    with pytest.raises(ValueError, match=r"no bfloat16 instructions.*Use auto or float32"):
        profile.choose_precision("bfloat16", CPU)


def test_the_peak_is_measured_once():
    first = profile.peak_flops(CPU, torch.float32, 1, 0.01)
    assert first > 1e8
    assert profile.peak_flops(CPU, torch.float32, 1, 0.01) == first


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with profile.cpu_threads(before + 1) as threads:
        assert threads == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_peak_memory_sees_a_large_tensor_and_forgets_it():
    profile.reset_peak_memory(CPU)
    before = profile.peak_memory(CPU)
    torch.ones(50_000_000).sum()  # 200 MB, freed at once
    during = profile.peak_memory(CPU)
    assert before is not None
    assert during is not None
    assert during - before > 150_000_000


PAGES = """
import resource, torch
from diffattn.train import profile

def step():
    return [torch.ones(1_000_000) for _ in range(10)]  # 10,000 pages

if KEEP:
    profile.keep_freed_memory()
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep what is freed")
def test_memory_that_was_freed_is_found_again_without_page_faults():
    """In processes of their own, because it holds for good."""
    given_back, kept = (
        int(subprocess.check_output([sys.executable, "-c", f"KEEP = {keep}\n{PAGES}"])) for keep in (False, True)
    )
    assert kept < given_back / 4  # not 0, where something small lies in the way
