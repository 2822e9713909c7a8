"""Drawings of instances in the plane: tokens, hulls, paths and directions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def draw_hull(axes: Any, points: np.ndarray) -> None:
    """Draw the convex hull of points, (n, 2), as a shaded polygon."""
    from scipy.spatial import ConvexHull, QhullError

    try:
        corners = points[ConvexHull(points).vertices]
    except (QhullError, ValueError):  # The points are on a line.
        corners = points[np.lexsort(points.T)][[0, -1]]
    axes.fill(*corners.T, alpha=0.15, color="C0")
    axes.plot(*np.concatenate([corners, corners[:1]]).T, color="C0", linewidth=1)


def draw_tokens(axes: Any, points: np.ndarray, names: Sequence[str] = ()) -> None:
    """Draw points, (n, 2), with their names, which default to 0, 1, ..."""
    axes.scatter(*points.T, color="black", zorder=3, s=20)
    for number, point in enumerate(points):
        name = names[number] if names else str(number)
        axes.annotate(name, point, xytext=(4, 4), textcoords="offset points")


def draw_paths(axes: Any, positions: np.ndarray) -> None:
    """Draw the positions of tokens over time, (steps, n, 2), or (steps, n) against the step."""
    for token in range(positions.shape[1]):
        own = positions[:, token]
        x, y = (np.arange(len(own)), own) if own.ndim == 1 else own.T
        axes.plot(x, y, marker=".", linewidth=0.8, markersize=3)


def draw_directions(axes: Any, directions: Mapping[str, Sequence[float]], length: float) -> None:
    """Draw rays from the origin along vectors in the plane, named in a legend."""
    for number, (name, direction) in enumerate(directions.items()):
        x = np.asarray(direction, float)
        end = length * x / max(float(np.linalg.norm(x)), 1e-300)
        axes.plot([0, end[0]], [0, end[1]], color=f"C{number}", label=name, linewidth=1.5)
    axes.legend(frameon=False)
