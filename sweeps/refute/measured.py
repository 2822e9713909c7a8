"""Claims of the form: a quantity that is measured on a flow is at most a tolerance."""

from fractions import Fraction

import numpy as np

from jaxattn.lab.refute import Claim, Evidence, Sides, flows

# Error tolerances of the flow: of the search, and of the second run that a counterexample has to survive.
RTOL, SECOND_RTOL = 1e-5, 1e-7
# Values of a measure for instances outside the assumptions.
OUTSIDE = -np.inf


def measured(
    measure, *, tolerance, quantity, size, assumptions=lambda instance: "", rtols=(RTOL, SECOND_RTOL), **claim
):
    """Build a claim from a measure.

    Args:
        measure: function (batch of exactly `size` instances, rtol) -> (size,) values; `OUTSIDE` for instances
            outside the assumptions.
        tolerance: largest value that the statement allows.
        quantity: name of the value.
        size: number of instances per call of `measure`, because each number is compiled separately.
        assumptions: see `Claim`; in addition, the value must not be `OUTSIDE`.
        rtols: error tolerances of the flow.
        claim: further arguments of `Claim`.
    """

    def score(batch):
        return flows.in_parts(lambda part: measure(part, rtols[0]), batch, size) - tolerance

    def value(instance, rtol):
        repeated = {name: np.repeat(x[None], size, axis=0) for name, x in instance.items()}
        return float(measure(repeated, rtol)[0])

    def exact(instance):
        found = value(instance, rtols[0])
        return Sides(Fraction(found) if np.isfinite(found) else Fraction(0), Fraction(tolerance))

    def evidence(instance):
        found = [value(instance, rtol) for rtol in rtols]
        return Evidence(
            contradicts=min(found) > tolerance,
            status="ended as required" if min(found) > OUTSIDE else "outside the assumptions",
            certificate="the target is computed in floating point",
            quantity=quantity,
            low=min(found),
            high=max(found),
            predicted=tolerance,
            interval="range over two tolerances",
        )

    return Claim(
        score=score,
        batched=True,
        flows=size,
        assumptions=assumptions,
        exact=exact,
        exact_target=False,
        evidence=evidence,
        **claim,
    )
