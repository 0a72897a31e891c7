"""Ridge regression on sparse rows, the same to the last digit that is kept, whatever the number of threads.

Sums are made by numpy's own loops and scipy's, never by a BLAS: that one adds in an order of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Array = npt.NDArray[np.float64]
_MOST_STEPS = 1_000


def ridge(
    rows: Any, targets: Array, weights: Array, penalty: float, *, tolerance: float = 1e-10
) -> tuple[Array, float]:
    """The coefficients and the intercept that minimise `weights · (targets - prediction)² + penalty · |x|²`.

    Solved by conjugate gradients, until the residual is `tolerance` of what it was. The intercept is not
    penalised.
    """
    total = float(weights.sum())
    centre = np.asarray(rows.T @ weights) / total
    mean = float((weights * targets).sum()) / total
    columns = sp.csr_matrix(rows.T)

    def apply(vector: Array) -> Array:
        predicted = rows @ vector - _dot(centre, vector)
        weighted = weights * predicted
        return columns @ weighted - centre * weighted.sum() + penalty * vector

    deviation = weights * (targets - mean)
    residual = columns @ deviation - centre * deviation.sum()
    solution = np.zeros_like(residual)
    direction, size = residual.copy(), _dot(residual, residual)
    goal = size * tolerance**2
    for _ in range(_MOST_STEPS):
        if size <= goal:
            break
        applied = apply(direction)
        step = size / _dot(direction, applied)
        solution += step * direction
        residual -= step * applied
        new_size = _dot(residual, residual)
        direction = residual + (new_size / size) * direction
        size = new_size
    return solution, mean - _dot(centre, solution)


def _dot(left: Array, right: Array) -> float:
    return float((left * right).sum())


def indicator(rows: list[tuple[int, ...]], columns: int) -> Any:
    """A sparse matrix with a one for each bucket of a row, each row divided by the root of their number."""
    counts = np.array([len(row) for row in rows])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    places = np.concatenate([np.array(sorted(row), dtype=np.int32) for row in rows])
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    return sp.csr_matrix((values, places, starts), shape=(len(rows), columns))
