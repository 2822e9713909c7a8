"""Attention as an SVM in p and v: the limit is p_mm if the head is tight on all, else relaxed."""

import numpy as np
import pytest

pytestmark = pytest.mark.more

# Constraints: p·(1, ±1) ≥ 1 and p·(1/2, h) ≥ 1, or ≥ 0 if v = (0, 1) is not tight.
P_MM = {"tight": (4 / 3, 1 / 3), "relaxed": (5 / 4, 1 / 4)}
P_RELAX = {"tight": P_MM["tight"], "relaxed": (1.0, 0.0)}
HEIGHTS = {"tight": 1.0, "relaxed": 1.5}


def descend(height, steps, all_digits):
    """Step along both gradients, each divided by its norm, in NumPy."""
    X, y = np.array([(1, 1), (1, -1), (0.5, height)]), np.array([1, -1, 1])
    p, v = np.array([0.0, -1.0]), np.array([-1.0, 0.0])
    for _ in range(steps):
        left, values = 1 / (1 + np.exp(X @ p)), X @ v
        q = 1 - left
        pull = -y / (1 + np.exp(y * q * values))
        # The second form is that of a softmax, which is 0 if q rounds to 1.
        slope_p = (pull * q * (left if all_digits else 1 - q) * values) @ X
        slope_v = (pull * q) @ X
        p = p - 0.1 * slope_p / max(np.linalg.norm(slope_p), 1e-300)
        v = v - 0.1 * slope_v / np.linalg.norm(slope_v)
    return p, v


def away(angle, target):
    return 2 * np.sin((angle - np.arctan2(target[1], target[0])) / 2) ** 2


def test_p_leaves_the_relaxed_direction_only_by_rounding_error(run, read):
    at, study = run("attention_svm_joint"), read("attention_svm_joint")
    for number, cell in enumerate(study.cells):
        case, dynamics = cell.settings["block"].split(", ")
        angle, v_angle = at("p_angle", cell=number)[0], at("v_angle", cell=number)[0]
        assert away(v_angle, (0, 1)) < 1e-5
        if dynamics == "all digits":
            p, v = descend(HEIGHTS[case], 1000, all_digits=True)
            np.testing.assert_allclose(angle, np.arctan2(p[1], p[0]), atol=1e-9)
            np.testing.assert_allclose(v_angle, np.arctan2(v[1], v[0]), atol=1e-9)
        if dynamics == "normalised":
            p, _ = descend(HEIGHTS[case], 1000, all_digits=False)
            np.testing.assert_allclose(angle, np.arctan2(p[1], p[0]), atol=1e-3)
            assert away(angle, P_MM[case]) < 1e-6
        else:
            assert away(angle, P_RELAX[case]) < 1e-4
