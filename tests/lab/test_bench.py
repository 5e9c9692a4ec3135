"""Every contender computes the same function, and what a benchmark writes is complete and fits together."""

import json
import math
import statistics
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import diffattn
from diffattn.cli import main
from diffattn.lab.bench import contenders as outside
from diffattn.lab.bench import machine, timing
from diffattn.lab.bench.contenders import FORMS, Inputs, Shape, ordinary_formula
from diffattn.lab.bench.ours import contenders

SHAPES = {
    "causal": Shape(batch=2, heads=4, kv_heads=4, queries=37, keys=37, width=16, value_width=32),
    "grouped": Shape(heads=6, kv_heads=2, queries=20, keys=20, width=16, value_width=32),
    "window": Shape(heads=2, kv_heads=2, queries=40, keys=40, width=16, value_width=32, window=7),
    "not causal": Shape(heads=2, kv_heads=1, queries=20, keys=31, width=16, value_width=32, is_causal=False),
    "one query": Shape(batch=2, heads=4, kv_heads=2, queries=1, keys=33, width=16, value_width=32),
    "narrow values": Shape(heads=2, kv_heads=2, queries=18, keys=18, width=16, value_width=16),
}


@pytest.fixture
def uncompiled_flex(monkeypatch: pytest.MonkeyPatch):
    """The same function without half a minute of compilation."""
    monkeypatch.setattr(outside, "_compiled_flex", lambda: flex_attention)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", [name for name in FORMS if name != "ordinary"])
def test_outside_forms_equal_the_reference(name: str, shape: Shape, uncompiled_flex: None):
    x = Inputs(shape, torch.float64)
    truth = diffattn.diff_attention(
        *x.two_maps(), x.lam, is_causal=shape.is_causal, window=shape.window, impl="reference"
    )
    # float64 with its 1e-16, over sums of tens of terms.
    torch.testing.assert_close(FORMS[name].run(x), truth, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_ordinary_form_equals_the_reference(shape: Shape):
    x = Inputs(shape, torch.float64)
    truth = diffattn.attention(*x.one_map(), is_causal=shape.is_causal, window=shape.window, impl="reference")
    for form in (FORMS["ordinary"].run, ordinary_formula):
        torch.testing.assert_close(form(x), truth, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["formula", "two_calls", "four_calls", "diff_attention:sdpa"])
def test_forms_have_the_gradients_of_the_reference(name: str):
    expected, found = (Inputs(SHAPES["grouped"], torch.float64, grad=True) for _ in range(2))
    expected.backward(contenders()["diff_attention:reference"].run(expected))
    found.backward(contenders()[name].run(found))
    for truth, leaf in zip(expected.leaves, found.leaves, strict=True):
        torch.testing.assert_close(leaf.grad, truth.grad, rtol=1e-11, atol=1e-12)


def test_ordinary_attention_reads_projections_and_caches_without_copies():
    layer = Inputs(SHAPES["causal"], torch.float32, grad=True)
    assert [x.untyped_storage().data_ptr() for x in layer.one_map()] == [
        x.untyped_storage().data_ptr() for x in layer.leaves[:3]
    ]
    # A cache of 2 G value heads of its own lies as one of G heads does: made once, each head by itself.
    cache = Inputs(SHAPES["one query"], torch.float32)
    first, second = cache.one_map()[2], cache.one_map()[2]
    assert first is second and first.is_contiguous() and cache.one_map()[1].is_contiguous()


def test_flops_count_what_a_query_may_see():
    shape = Shape(batch=3, heads=2, kv_heads=1, queries=5, keys=8, width=16, value_width=32, window=3)
    seen = sum(1 for t in range(5) for s in range(8) if s <= t + 3 and s > t + 3 - 3)
    # A multiply-add is two operations: two maps of D, one product with E.
    assert shape.flops == 3 * 2 * seen * 2 * (16 + 16 + 32)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"heads": 3, "kv_heads": 2}, "kv_heads: got 2"),
        ({"value_width": 65}, "value_width: got 65"),
        ({"width": 0}, "width: got 0"),
        ({"queries": 9, "keys": 8}, "keys: got 8"),
        ({"window": 4, "is_causal": False}, "window"),
    ],
)
def test_sizes_that_no_form_can_compute_are_named(sizes: dict[str, Any], says: str):
    with pytest.raises(ValueError, match=says):
        Shape(**sizes)


def test_forms_that_hold_maps_are_refused_before_memory_is_full(monkeypatch: pytest.MonkeyPatch):
    x = Inputs(SHAPES["causal"], torch.float32)
    held = [name for name, form in FORMS.items() if form.refuses(x, False)]
    monkeypatch.setattr(outside, "free_memory", lambda device: 1000)
    refused = [name for name, form in FORMS.items() if "GB are free" in (form.refuses(x, False) or "")]
    assert (held, refused) == ([], ["formula", "two_calls"])


def test_contenders_need_torch_alone():
    code = (
        "import sys\nblocked = {'numpy', 'rich', 'tyro', 'scipy', 'safetensors', 'tokenizers'}\n"
        "class Block:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\nimport diffattn.lab\nassert 'torch' not in sys.modules\n"
        "from diffattn.lab.bench.contenders import FORMS, Inputs, Shape"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def loads(monkeypatch: pytest.MonkeyPatch, shares: list[float]) -> None:
    """Other work on the machine, round by round; afterwards none."""
    monkeypatch.setattr(timing, "_busy_seconds", lambda: 0.0)
    monkeypatch.setattr(timing._OtherLoad, "share", lambda self: shares.pop(0) if shares else 0.0)


def test_rounds_with_other_load_are_thrown_away(monkeypatch: pytest.MonkeyPatch):
    loads(monkeypatch, [0.9, 0.0, 0.9, 0.0, 0.9])
    found = timing.interleaved({"a": lambda: None}, 60.0, torch.device("cpu"))
    assert (found.rounds, found.disturbed, found.quiet) == (timing.ROUNDS, 3, True)
    assert len(found.seconds["a"]) == timing.ROUNDS


def test_each_round_times_all_in_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch):
    loads(monkeypatch, [])
    monkeypatch.setattr(timing, "SHORTEST", 0.0)
    called: list[str] = []
    timing.interleaved({name: lambda name=name: called.append(name) for name in "abcd"}, 60.0, torch.device("cpu"))
    rounds = [tuple(called[at : at + 4]) for at in range(4, len(called), 4)]  # behind those that count calls
    assert len(rounds) == timing.ROUNDS and len(set(rounds)) > 5
    assert all(sorted(found) == list("abcd") for found in rounds)


def test_without_enough_quiet_rounds_all_are_kept_and_that_is_said(monkeypatch: pytest.MonkeyPatch):
    loads(monkeypatch, [0.9, 0.0, 0.9])
    found = timing.interleaved({"a": lambda: None}, 0.0, torch.device("cpu"))
    assert (found.rounds, found.disturbed, found.quiet) == (3, 2, False)


def test_ratios_are_medians_over_rounds():
    found = timing.Timings({"a": [1.0, 2.0, 4.0], "b": [3.0, 4.0, 4.0]}, 3, 0, True)
    assert found.ratio("b", "a") == 2.0
    assert found.ratio("b", "c") is None


ZEN3 = {"vendor_id": "AuthenticAMD", "cpu family": "25", "cpu MHz": "2000.0", "flags": "fma avx2"}
ZEN4 = {**ZEN3, "flags": "fma avx2 avx512f avx512_bf16"}
ZEN5 = {**ZEN4, "cpu family": "26"}


@pytest.mark.parametrize(
    ("cpuinfo", "dtype", "per_cycle"),
    [
        (ZEN3, torch.float32, 32),  # two units of 8 lanes, a multiply and an addition each
        (ZEN3, torch.float64, 16),
        (ZEN3, torch.bfloat16, None),
        (ZEN4, torch.float32, 32),
        (ZEN5, torch.float32, 64),
        (ZEN5, torch.bfloat16, 128),
        ({"cpu MHz": "2000.0", "flags": "sse2"}, torch.float32, None),
        ({}, torch.float32, None),
    ],
)
def test_the_hardware_peak_follows_from_clock_and_width(
    cpuinfo: dict[str, str], dtype: torch.dtype, per_cycle: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "_highest_megahertz", lambda: 0.0)
    peak, derivation = machine.hardware_peak(cpuinfo, dtype, threads=3)
    assert peak == (None if per_cycle is None else 3 * 2e9 * per_cycle)
    assert derivation.startswith("unknown") == (per_cycle is None)


def test_a_measured_clock_counts_where_it_is_above_the_reported_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "_highest_megahertz", lambda: 0.0)
    for measured, gigahertz in ((3.5e9, 3.5), (1.5e9, 2.0)):
        peak, derivation = machine.hardware_peak(ZEN3, torch.float32, 1, measured)
        assert peak == pytest.approx(gigahertz * 32e9) and f"{gigahertz:.2f} GHz" in derivation


def check_machine(found: dict[str, Any]) -> None:
    told = found["machine"]
    assert told["torch"] == torch.__version__ and told["diffattn"] == diffattn.__version__
    assert told["threads"] == 1 and len(told["date"]) == len("2026-01-31")
    assert told["matmul_peak_gflops"] > 0


def check_table(table: dict[str, Any], known: set[str], peak_gflops: float) -> None:
    rows = table["contenders"]
    assert set(rows) | set(table["missing"]) == known and not set(rows) & set(table["missing"])
    assert rows["ordinary"]["ratio_to_a"] == rows["four_calls"]["ratio_to_d"] == 1.0
    for row in rows.values():
        assert row["milliseconds"] == pytest.approx(statistics.median(row["samples_milliseconds"]))
        assert row["gflops"] == pytest.approx(table["flops"] / row["milliseconds"] / 1e6)
        assert row["share_of_matmul_peak"] == pytest.approx(row["gflops"] / peak_gflops)
        assert len(row["samples_milliseconds"]) == table["rounds"] >= timing.FEWEST


def test_bench_attention_writes_everything(tmp_path, capsys):
    path = tmp_path / "attention.json"
    chosen = ["formula", "flex", "diff_attention:reference", "attention:sdpa"]
    sizes = ["--lengths", "512", "24", "--heads", "4", "--width", "16", "--passes", "training"]
    assert main(["bench", "attention", *sizes, "--seconds", "0", "--contenders", *chosen, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    check_machine(found)
    for table in found["tables"]:
        check_table(table, {*chosen, "ordinary", "four_calls"}, found["machine"]["matmul_peak_gflops"])
        assert "no backward pass on a CPU" in table["missing"]["flex"]
    first, second = found["tables"]
    assert [table["shape"]["queries"] for table in found["tables"]] == [512, 24]
    # Errors are taken once; float32 rounds to 6e-8, and a relative error of 2-norms averages over elements.
    for row in first["contenders"].values():
        assert 0 < row["error"]["output"] < 1e-6 and 0 < row["error"]["gradients"] < 2e-6
    assert all(row["error"] is None for row in second["contenders"].values())
    maps = 2 * 4 * 512 * 512 * 4
    if sys.platform == "linux":
        assert first["contenders"]["formula"]["peak_memory_bytes"] > maps
        assert first["contenders"]["four_calls"]["peak_memory_bytes"] < maps
    printed = capsys.readouterr().out
    assert all(row["title"] in printed for row in first["contenders"].values())
    assert "no backward pass on a CPU" in printed


def test_bench_step_writes_everything(tmp_path, capsys):
    path = tmp_path / "step.json"
    options = ["--task", "recall", "--arms", "diff_v1", "--batch-size", "2", "--context", "16", "--seconds", "0"]
    assert main(["bench", "step", *options, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    check_machine(found)
    assert list(found["arms"]) == ["softmax", "diff_v1"] and (found["batch_size"], found["context"]) == (2, 16)
    assert found["arms"]["softmax"]["ratio_to_baseline"] == 1.0
    for row in found["arms"].values():
        assert row["tokens_per_second"] == pytest.approx(2 * 16 / row["milliseconds"] * 1e3)
        assert row["gflops"] > 0 and row["parameters"] > 0
    assert "diff_v1" in capsys.readouterr().out


def test_bench_decode_writes_everything(tmp_path, capsys):
    path = tmp_path / "decode.json"
    operator = ["--keys", "20", "--heads", "2", "--width", "8", "--contenders", "formula", "diff_attention:sdpa"]
    generation = ["--task", "recall", "--arms", "diff_v1"]
    assert main(["bench", "decode", *operator, *generation, "--seconds", "0", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    check_machine(found)
    (table,) = found["tables"]
    assert (table["shape"]["queries"], table["shape"]["keys"], table["pass"]) == (1, 20, "forward")
    known = {"ordinary", "four_calls", "formula", "diff_attention:sdpa"}
    check_table(table, known, found["machine"]["matmul_peak_gflops"])
    assert set(found["generation"]["arms"]) == {"softmax", "diff_v1"}
    for row in found["generation"]["arms"].values():
        assert all(math.isfinite(number) and number > 0 for number in row.values())
    assert "new tokens/s" in capsys.readouterr().out
