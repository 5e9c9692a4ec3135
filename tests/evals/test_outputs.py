"""What heads write, against formulas on the operators' own maps."""

import numpy as np
import pytest
import torch
from scipy import optimize

from diffattn.evals.hull import outside_hull
from diffattn.evals.inside import PerHead
from diffattn.evals.instruments import look_inside
from support.inside import maps_of, recall_batch, stirred_model, text_batch

CLOSE = {"rel": 1e-6, "abs": 1e-9}
"""Float64 sums in another order."""


def test_contribution_of_the_first_token_and_size_of_the_heads() -> None:
    model, batch = stirred_model("diff_v1"), text_batch()
    inside = look_inside(model, [batch], answers=False, hull_samples=0)
    residuals, written = [], []
    for block in model.blocks():
        block.register_forward_pre_hook(lambda _, arguments: residuals.append(arguments[0].detach().numpy()))
        block.mixer.o.register_forward_pre_hook(  # pyright: ignore[reportAttributeAccessIssue]
            lambda _, arguments: written.append(arguments[0].detach().numpy())
        )
    model(batch.tokens, batch.documents)
    for number, (layer, maps) in enumerate(zip(inside.layers, maps_of(model, batch), strict=True)):
        mixer = model.blocks()[number].mixer
        outputs, into = layer.outputs, mixer.o.weight.detach().numpy()  # pyright: ignore
        weight = mixer.norm_weight.detach().numpy()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue, reportCallIssue]
        assert outputs is not None and outputs.signal_to_noise is None and outputs.hull_samples == 0
        for head in range(4):
            part = into[:, head * 8 : (head + 1) * 8]
            lengths = np.linalg.norm((maps.values[:, head] * weight) @ part.T, axis=-1)
            size = np.abs(maps.effective[:, head])
            total = first = plain = 0.0
            for window, query in np.ndindex(*size.shape[:2]):
                keys = np.flatnonzero(maps.visible[window, query])
                total += (size[window, query, keys] * lengths[window, keys]).sum()
                first += size[window, query, keys[0]] * lengths[window, keys[0]]
                plain += size[window, query, keys[0]]
            assert outputs.first_contribution.heads[head] == pytest.approx(first / total, **CLOSE)
            assert outputs.first_weight.heads[head] == pytest.approx(plain / size.sum(), **CLOSE)
            added = written[number][..., head * 8 : (head + 1) * 8] @ part.T
            expected = np.linalg.norm(added) / np.linalg.norm(residuals[number])
            assert outputs.relative_norm.heads[head] == pytest.approx(expected, **CLOSE)


def test_signal_and_noise_of_the_rows_that_ask() -> None:
    model, batch = stirred_model("diff_v1"), recall_batch()
    inside = look_inside(model, [batch], answers=True, hull_samples=0)
    sources = {6: [3], 8: [1], 10: [5], 12: [3, 7]}
    for layer, maps in zip(inside.layers, maps_of(model, batch), strict=True):
        assert layer.outputs is not None and layer.outputs.signal_to_noise is not None
        found = layer.outputs.signal_to_noise
        for head in range(4):
            plain, normed = {}, np.zeros(2)
            for name, map in (("first_map", maps.first), ("effective", maps.effective)):
                plain[name] = np.zeros(2)
                for window in range(2):
                    for row, keys in sources.items():
                        weights, values = map[window, head, row], maps.values[window, head]
                        signal, whole = weights[keys] @ values[keys], weights @ values
                        sizes = np.array([np.square(signal).sum(), np.square(whole - signal).sum()])
                        plain[name] += sizes
                        if name == "effective":
                            # The norm's weights were stirred: the row's factor is that of the whole row.
                            after = _after_norm(model, layer.layer, whole)
                            normed += sizes * np.square(after).sum() / np.square(whole).sum()
            for name, sizes in plain.items():
                share: PerHead = getattr(found, name)
                assert share.heads[head] == pytest.approx(sizes[0] / sizes[1], **CLOSE)
            assert found.normed.heads[head] == pytest.approx(normed[0] / normed[1], **CLOSE)


def _after_norm(model: torch.nn.Module, layer: int, read: np.ndarray) -> np.ndarray:
    mixer = model.blocks()[layer].mixer  # pyright: ignore
    weight = mixer.norm_weight.detach().numpy()
    return read / np.sqrt(np.square(read).mean() + mixer.norm_eps) * weight * (1 - mixer.lambda_init)


def test_weighted_means_lie_inside_the_hull() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(20, 6))
    weights = generator.dirichlet(np.ones(20))
    assert not outside_hull(weights @ points, points)
    assert not outside_hull(points[3], points)
    assert not outside_hull(points[0], points[:1])
    farthest = points[np.argmax(np.linalg.norm(points, axis=1))]
    assert outside_hull(farthest * 1.01, points)
    assert outside_hull(points[0] * 0.99, points[:1])


def test_a_program_that_the_simplex_method_leaves_undecided_is_solved_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solve, undecided = optimize.linprog, {"highs"}

    def gives_up(*program, method, **options):
        found = solve(*program, method=method, **options)
        if method in undecided:
            found.status, found.fun = 4, None
        return found

    monkeypatch.setattr(optimize, "linprog", gives_up)
    points = np.eye(3)
    assert outside_hull(points[0] * 2, points) is True
    assert outside_hull(points.mean(axis=0), points) is False
    undecided.add("highs-ipm")
    assert outside_hull(points[0] * 2, points) is None


def test_softmax_reads_inside_the_hull_and_differences_outside() -> None:
    shares = {}
    for variant in ("softmax", "diff_v1"):
        inside = look_inside(stirred_model(variant), [text_batch()], answers=False, hull_samples=40)
        found = [layer.outputs for layer in inside.layers if layer.outputs is not None]
        assert [outputs.hull_samples for outputs in found] == [20, 20]
        shares[variant] = [share for x in found if x.outside_hull is not None for share in x.outside_hull.heads]
    assert shares["softmax"] == [0.0] * 8
    # Eight channels, at most twenty points, weights that sum to 1 - λ.
    assert min(shares["diff_v1"]) > 0.5


def test_sampled_reads_are_spread_over_heads_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr("diffattn.evals.outputs.outside_hull", lambda _, points: bool(asked.append(points.shape)))
    inside = look_inside(stirred_model("softmax"), [text_batch()], answers=False, hull_samples=2000)
    # No more than there are tokens: 60 of each layer, each at its own place.
    assert sum(layer.outputs.hull_samples for layer in inside.layers if layer.outputs) == len(asked) == 120
    visible = sorted([*range(1, 21), *range(1, 9), *range(1, 13), *range(1, 14), *range(1, 8)])
    assert sorted(count for count, _ in asked) == sorted(visible * 2)


def test_a_layer_with_another_path_has_no_outputs() -> None:
    """Dex adds a product behind its map, which is neither norm nor gate."""
    model = stirred_model("dex")
    with torch.no_grad():
        for block in model.blocks():
            block.mixer.advance(1.0)
    for layer in look_inside(model, [text_batch()], answers=False, hull_samples=8).layers:
        assert layer.outputs is None and layer.maps[0].gradient_norm is None
        assert layer.maps[0].allocation.first.absolute.mean is not None
