"""The oracle of exact flows computes the gradient of the loss."""

import flow_oracle
import mpmath


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

    with mpmath.workdps(60):
        p, h = mpmath.matrix(start.tolist()), mpmath.mpf("1e-15")
        force, _ = reference.force(p)
        for k in range(len(start)):
            step = mpmath.matrix([h * (j == k) for j in range(len(start))])
            assert abs(force[k] + (loss(p + step) - loss(p - step)) / (2 * h)) < 1e-25
