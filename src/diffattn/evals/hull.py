"""Whether a vector is a weighted mean of others: the question that softmax always answers with yes."""

import numpy as np

SLACK = 1e-4
"""Distance, in root mean squares of the points, that still counts as inside: float32 maps sum to 1 within 1e-6."""


def outside_hull(vector: np.ndarray, points: np.ndarray) -> bool | None:
    """Say whether vector [E] lies outside the convex hull of points [n, E], by a linear program.

    It minimises the largest deviation e of a weighted mean from the vector, |w points - vector| <= e in every channel,
    w >= 0, sum w = 1. None: the solver did not decide. ValueError: scipy is not installed.
    """
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise ValueError("the share outside the convex hull needs scipy: pip install 'diffattn[report]'") from error
    scale = float(np.sqrt(np.square(points, dtype=np.float64).mean())) or 1.0
    vector, points = vector.astype(np.float64) / scale, points.astype(np.float64) / scale
    count, width = points.shape
    objective = np.append(np.zeros(count), 1.0)
    upper = np.hstack((points.T, -np.ones((width, 1))))
    lower = np.hstack((-points.T, -np.ones((width, 1))))
    # The simplex method may end undecided on a program that always has a solution; the interior point method then
    # finds it.
    for method in ("highs", "highs-ipm"):
        found = linprog(
            objective,
            A_ub=np.vstack((upper, lower)),
            b_ub=np.concatenate((vector, -vector)),
            A_eq=np.append(np.ones(count), 0.0)[None],
            b_eq=[1.0],
            method=method,
        )
        if found.status == 0:
            return bool(found.fun > SLACK)
    return None
