"""The oracle of exact flows: its force and a problem in which it found a jump of p."""

import flow_oracle
import mpmath
import numpy as np

import jaxattn as ja


def test_force_is_the_derivative_of_the_loss():
    keys, values, sequences, labels, classes, start = flow_oracle.problem("k3 contra", 0)
    reference = flow_oracle.Reference(keys, values, sequences, labels, classes)

    def loss(p):
        total = mpmath.mpf(0)
        for tokens, label in zip(sequences, labels, strict=True):
            q = [mpmath.exp(x) for x in mpmath.matrix(keys[tokens].tolist()) * p]
            f = [mpmath.fdot(q, values[tokens, k].tolist()) / mpmath.fsum(q) for k in range(classes)]
            total += mpmath.log(mpmath.fsum(mpmath.exp(x) for x in f)) - f[label]
        return total

    with mpmath.workdps(40):
        p, h = mpmath.matrix(start.tolist()), mpmath.mpf("1e-15")
        force, _ = reference.force(p)
        for k in range(len(start)):
            step = mpmath.matrix([h * (j == k) for j in range(len(start))])
            assert abs(force[k] + (loss(p + step) - loss(p - step)) / (2 * h)) < 1e-25


def test_path_does_not_jump_to_a_balance_that_is_far_away():
    """Two keys differ by 1e-15, so a small difference of their scores is a long way of p."""
    *made, start = flow_oracle.problem("tie keys", 17)
    unit = 1 / np.abs(made[0]).max()
    path = ja.dynamics.exact_flow(flow_oracle.scores_of(*made), start, until_norm=100 * unit, points=25)
    assert path.norm[-1] < 101 * unit
