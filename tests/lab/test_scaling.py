"""Ladders: planted shares are found, intervals cover them, and what cannot be told is not told."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from diffattn.cli import main
from diffattn.lab.plan import Plan
from diffattn.lab.report.ladder import _page, _text
from diffattn.lab.scaling import measure
from diffattn.lab.scaling_fit import bootstrap, fit, interval
from diffattn.lab.scaling_sentence import percent
from diffattn.lab.scaling_shares import Fits, cost_line, shares_at
from diffattn.lab.sweep import between
from support.ladders import Truth, losses_of, planted, report_of
from support.plans import tiny_plan, tiny_task

MIDDLE = {"parameters": 138e3, "tokens": 1.95e6}
POINTS = [
    {"parameters": 50e3, "tokens": 5e5},
    {"parameters": 330e3, "tokens": 6.6e6},
]


def shares(points, draws: int = 0):
    fitted = fit(points)
    fits = Fits(fitted, bootstrap(points, fitted, draws) if draws else None, len(points.seeds))
    return shares_at(MIDDLE, POINTS, {}, 1, fits)


@pytest.mark.parametrize("shifts", [(1.25, 1.15), (1.6, 1.0), (0.7, 0.9), (1.0, 1.0)])
def test_planted_shares_are_found(shifts):
    truth = Truth(shifts=shifts)
    found = shares(planted(truth))
    for kind in ("parameters", "tokens"):
        # The weak priors move a fit without noise by less than this.
        assert found[kind]["value"] == pytest.approx(truth.share(kind, **MIDDLE), rel=0.01)


def test_one_outlying_run_moves_the_share_little():
    points = planted(Truth(), sd=0.005)
    clean = shares(points)["parameters"]["value"]
    loss = points.loss.copy()
    loss[-1] += 0.3  # sixty standard deviations
    assert shares(replace(points, loss=loss))["parameters"]["value"] == pytest.approx(clean, rel=0.06)


def test_the_published_pairs_agree_with_one_shift():
    # Section 3.2 of arXiv 2410.05258: 6.8 B as good as 11 B (62.2 %), 7.8 B as good as 13.1 B (59.5 %), one budget.
    # The baseline's curve has the constants of Hoffmann et al. (arXiv 2203.15556).
    def softmax(n: float) -> float:
        return 1.69 + 406.4 * n**-0.34 + 410.7 * 1e10**-0.28

    sizes = {0.83e9: 0.622, 1.4e9: 0.622, 2.8e9: 0.622, 6.8e9: 0.622, 7.8e9: 0.595, 13.1e9: 0.595}
    found = measure(report_of({(n, 1e10): ([softmax(n)], [softmax(n / share)]) for n, share in sizes.items()}))
    finding = found["findings"]["diff_v1"]
    assert 0.595 <= finding["by_point"]["6.8e+09_1e+10"]["parameters"]["value"] <= 0.622
    assert finding["shares"]["tokens"] is None
    assert list(finding["shifts"]) == ["parameters"]
    assert "all runs had one number of tokens, so that what it needs of them is not known" in finding["sentence"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("truth", "sd", "own_sd"),
    [(Truth(), 0.019, 0.0), (Truth(shifts=(1.6, 0.85)), 0.019, 0.0), (Truth(), 0.019, 0.01)],
    ids=["shifts of one sign", "of both", "luck that all runs of a seed share"],
)
def test_95_percent_intervals_cover_the_truth_in_90_to_99_percent(truth, sd, own_sd):
    # 0.019: the standard deviation of 0.33 M parameters on bytes over seeds.
    kinds = ("parameters", "tokens")
    hits, draws = dict.fromkeys(kinds, 0), 200
    for draw in range(draws):
        found = shares(planted(truth, seeds=3, sd=sd, own_sd=own_sd, draw=draw), draws=50)
        for kind in kinds:
            hits[kind] += found[kind]["low"] <= truth.share(kind, **MIDDLE) <= found[kind]["high"]
    assert all(0.90 <= hits[kind] / draws <= 0.99 for kind in kinds), hits


def test_an_interval_over_seeds_is_students_for_a_mean():

    values = np.array([1.0, 2.0, 4.0])
    every = values[np.array(np.meshgrid(*[range(3)] * 3)).reshape(3, -1)].mean(axis=0)
    low, high = interval(values.mean(), every, 3)
    half = 4.302653 * values.std(ddof=1) / math.sqrt(3)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), rel=1e-6)


def test_where_a_resampling_finds_no_number_there_is_no_upper_bound_and_the_reciprocal_tells_the_lower_one():
    drawn = np.log([2.0, 2.0, 4.0, np.inf])
    low, high = interval(math.log(3), drawn, 3)
    half = 4.302653 * math.sqrt(3 / 2) * np.std([1 / 2, 1 / 2, 1 / 4, 0])
    assert math.exp(low) == pytest.approx(1 / (1 / 3 + half), rel=1e-6)
    assert high == math.inf


def test_a_share_without_an_upper_bound_is_said_to_have_none():
    # Shifts far from 1, so that some seeds' curves reach the baseline's loss with no number of tokens or parameters.
    truth = Truth(shifts=(0.6, 0.3))
    found = measure(report_of(losses_of(truth, sd=0.019)), draws=50)
    finding = found["findings"]["diff_v1"]
    for kind, other in (("parameters", "tokens"), ("tokens", "parameters")):
        share = finding["shares"][kind]
        assert share["unbounded"] and share["high"] is None
        assert 1 < share["low"] < truth.share(kind, **MIDDLE)
        value, low = (f"{100 * share[key]:,.0f} %" for key in ("value", "low"))
        assert f"{value} ({low} or more, no upper bound) of the {kind} at equal {other}" in finding["sentence"]
    text, page = _text(found), _page(found)
    cells = [shares[kind] for shares in finding["by_point"].values() for kind in ("parameters", "tokens")]
    assert 1 < sum(share["unbounded"] for share in cells) == text.count("% or more, no upper bound), extrapolated |")
    for words in (text, " ".join(page.split())):
        assert "No upper bound is known of the parameters and of the tokens that diff_v1 needs" in words


def test_a_loss_that_no_number_of_tokens_reaches_is_said_to_be_out_of_reach():
    found = measure(report_of(losses_of(Truth(shifts=(0.05, 1.0)))), draws=5)
    share = found["findings"]["diff_v1"]["shares"]["tokens"]
    assert (share["value"], share["unbounded"], share["seen"]) == (None, True, False)
    assert (
        "more than any number of tokens at equal parameters, by these curves"
        in found["findings"]["diff_v1"]["sentence"]
    )
    assert "no number is enough" in _text(found)
    json.dumps(found, allow_nan=False)


def test_seconds_and_flops_along_a_scale_without_an_end_have_a_lower_bound():
    fitted = fit(planted(Truth()))
    # One of four resamplings finds the arm beyond reach.
    drawn = replace(fitted, p=np.stack([fitted.p, fitted.p, fitted.p, fitted.p - [0, 0, 0, 0, 0, 50, 50]]))
    points = [{**point, "seconds": {"softmax": 1e-6, "diff_v1": 1e-6}} for point in POINTS]
    cost = {"seconds": tuple(cost_line(points, name, "seconds") for name in ("softmax", "diff_v1"))}
    found = shares_at(MIDDLE, POINTS, cost, 1, Fits(fitted, drawn, 3))["seconds"]
    assert found["unbounded"] and found["high"] is None and 0 < found["low"] < found["value"]


@pytest.mark.parametrize(
    ("kind", "other", "points", "absent"),
    [
        ("tokens", "parameters", [(1e5, d) for d in (1e6, 2e6, 4e6)], ("s_N", "α")),
        ("parameters", "tokens", [(n, 1e6) for n in (5e4, 1e5, 2e5)], ("s_D", "β")),
    ],
    ids=["one size", "one budget"],
)
def test_of_what_all_runs_had_the_same_nothing_is_said(kind, other, points, absent):
    truth, random = Truth(), np.random.default_rng(0)
    losses = {
        at: tuple([truth.loss(arm, *at) + 0.005 * random.normal() for _ in range(3)] for arm in (0, 1)) for at in points
    }
    found = measure(report_of(losses), draws=10)
    finding = found["findings"]["diff_v1"]
    told, shares = finding["sentence"], finding["shares"]
    # Along one axis FLOPs shrink as much as it does, and 6 N D is proportional to either.
    assert shares["flops"]["value"] == pytest.approx(shares[kind]["value"])
    flops, seconds = percent(shares["flops"]), percent(shares["seconds"])
    assert f"; at equal {other} {flops} of the FLOPs and {seconds} of the seconds of training; " in told
    assert "tokens per parameter" not in told and "e+0" not in told
    assert f"all runs had one number of {other}, so that what it needs of them is not known" in told
    assert f"% of the {other}" not in told
    text = _text(found)
    assert f"needs of {kind}" in text and f"needs of {other}" not in text
    assert not any(symbol in text for symbol in absent)
    assert sorted(key for key in ("alpha", "beta") if found["fit"][key] is None) == [
        {"parameters": "alpha", "tokens": "beta"}[other]
    ]


def test_the_sentence_tells_shares_limits_and_no_verdict():
    truth = Truth()
    found = measure(report_of(losses_of(truth, sd=0.005)), draws=20)
    finding = found["findings"]["diff_v1"]
    told = finding["sentence"]
    share = finding["shares"]["parameters"]
    assert (
        f"{100 * share['value']:.0f} % ({100 * share['low']:.0f} to {100 * share['high']:.0f} %) of the param" in told
    )
    for words in ("3 seeds", "a screen", "from 50k to 330k non-embedding parameters", "planted", "not equal:"):
        assert words in told
    assert "better" not in told
    # 10 % more seconds per token, and FLOPs alike.
    seconds, flops = finding["shares"]["seconds"]["value"], finding["shares"]["flops"]["value"]
    assert seconds == pytest.approx(1.1 * flops)
    # Both shrink by one factor: FLOPs are 6 N D here.
    assert flops == pytest.approx(finding["shares"]["scale"]["value"] ** 2)


def test_curves_that_cross_within_the_ladder_have_no_share():
    losses = losses_of(Truth(), sd=0.001)
    for (n, _), (base, arm) in losses.items():
        arm[:] = [value + 0.05 * math.log(n / 138e3) for value in base]
    finding = measure(report_of(losses), draws=10)["findings"]["diff_v1"]
    assert finding["shares"] == {}
    assert finding["by_point"] == {}
    assert "3.3e+05_6.6e+06" in finding["crossing"]["above"]
    assert "5e+04_5e+05" in finding["crossing"]["below"]
    assert "crosses" in finding["sentence"]
    assert "% of the parameters" not in finding["sentence"]


def test_one_seed_whose_points_lie_on_both_sides_has_no_share_and_no_word_of_a_crossing():
    losses = losses_of(Truth(), seeds=1, sd=0.005)
    for (n, _), (base, arm) in losses.items():
        arm[:] = [value + 0.05 * math.log(n / 138e3) for value in base]
    finding = measure(report_of(losses))["findings"]["diff_v1"]
    small, large = ([f"{n:.3g}_{d:.3g}" for n, d in losses if (n > 138e3) == over] for over in (False, True))
    assert finding["crossing"] == {"judged": False, "above": large, "below": small}
    assert (finding["shares"], finding["by_point"]) == ({}, {})
    assert (
        "whether its curve crosses that of softmax cannot be judged with one seed: its loss is higher at "
        f"{', '.join(large)} and lower at {', '.join(small)}, so that no share is given" in finding["sentence"]
    )
    assert "%" not in finding["sentence"]


def test_a_share_beyond_what_was_run_is_called_an_extrapolation():
    finding = measure(report_of(losses_of(Truth(shifts=(0.2, 1.0)))), draws=5)["findings"]["diff_v1"]
    assert not finding["shares"]["parameters"]["seen"]
    assert "an extrapolation to" in finding["sentence"]


def test_one_seed_has_no_interval():
    finding = measure(report_of(losses_of(Truth(), seeds=1)))["findings"]["diff_v1"]
    assert finding["shares"]["parameters"]["low"] is None
    assert "one seed, so no interval and no telling whether the curves cross" in finding["sentence"]
    assert "its loss is higher at 0 and lower at 8 of 8" in finding["sentence"]
    assert "an interval that holds" not in finding["sentence"]


def test_a_seed_that_is_not_finished_at_every_point_does_not_count():
    losses = losses_of(Truth())
    next(iter(losses.values()))[1][2] = None
    assert measure(report_of(losses), draws=5)["seeds"] == [0, 1]


def test_an_arm_with_a_failed_run_is_unstable_and_left_out():
    report = report_of(losses_of(Truth()))
    next(iter(report["tasks"].values()))["arms"]["diff_v1"]["failed_seeds"] = [1]
    found = measure(report)
    assert found["findings"] == {}
    assert "diff_v1: UNSTABLE, 1 of its runs failed" in _text(found)


def test_the_page_draws_every_run_and_extrapolates_in_dashes():
    found = measure(report_of(losses_of(Truth(), sd=0.01)), draws=5)
    page = _page(found)
    assert page.count("<svg viewBox") == page.count('class="panel"') == 4
    # 48 runs against N and against D, 24 differences likewise.
    assert page.count('class="dot"') == 2 * 48 + 2 * 24
    assert 'class="arm1 extrapolated"' in page
    assert "which is extrapolation" in page


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(1e5, 1e6), (2e5, 2e6), (4e5, 4e6), (8e5, 8e6), (16e5, 16e6)], "tokens grow in step with the size"),
        ([(1e5, 1e6)], "one of each"),
        ([(1e5, 1e6), (1e5, 2e6), (2e5, 2e6)], "3 points cannot tell a curve of 5 numbers"),
    ],
)
def test_what_is_no_ladder_is_refused(points, words):
    with pytest.raises(ValueError, match=words):
        measure(report_of({point: ([2.0], [2.0]) for point in points}))


def test_rates_between_the_ends_are_geometric_in_parameters_times_tokens():
    first, last = tiny_task(name="a", learning_rates=(1e-2,)), tiny_task(name="c", learning_rates=(1e-2,))
    last = replace(last, train=replace(last.train, steps=16 * first.train.steps))
    middle = tiny_task(name="b", rates_between=("a", "c"), train=replace(first.train, steps=4 * first.train.steps))
    tiny_plan(first, middle, last).validate()
    ends = [(first, {"softmax": 1e-2, "diff_v1": 2e-2}), (last, {"softmax": 2.5e-3, "diff_v1": 2e-2})]
    assert between(middle, ends) == {"softmax": 5e-3, "diff_v1": 2e-2}


@pytest.mark.parametrize("ends", [("a",), ("a", "a"), ("a", "nowhere")])
def test_rates_between_needs_two_other_tasks_with_grids(ends):
    tasks = (tiny_task(name="a", learning_rates=(1e-2,)), tiny_task(name="b", rates_between=ends))
    with pytest.raises(ValueError, match="rates_between"):
        tiny_plan(*tasks).validate()


def test_a_plan_with_rates_between_survives_json_and_others_keep_their_hash():
    tasks = (
        tiny_task(name="a", learning_rates=(1e-2,)),
        tiny_task(name="b", rates_between=("a", "c")),
        tiny_task(name="c", learning_rates=(1e-2,)),
    )
    plan = tiny_plan(*tasks)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert "rates_between" not in tiny_task().to_dict()


def test_the_verb_trains_a_ladder_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "ladder"
    call = ["scaling", "scale_smoke", "--out", str(out), "--seeds", "1"]
    assert main(call) == 0
    told = capsys.readouterr().out
    assert told.strip().endswith(str(out / "scaling.html"))
    found = json.loads((out / "scaling.json").read_text())
    assert [len(found[key]) for key in ("points", "seeds", "arms")] == [6, 1, 2]
    assert (out / "report.html").exists()
    assert found["findings"]["diff_v1"]["sentence"] in told
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/done")}
    assert main(call) == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/done")} == before


def test_a_recipe_that_is_no_ladder_is_refused_before_anything_is_trained(tmp_path, capsys):
    assert main(["scaling", "quick", "--out", str(tmp_path / "x")]) == 2
    assert "this is no ladder" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
