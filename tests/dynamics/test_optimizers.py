import numpy as np
import pytest

from jaxattn.dynamics import schedule


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("constant", lambda t: 1),
        ("cosine", lambda t: (1 + np.cos(np.pi * t)) / 2),
        ("linear", lambda t: 1 - t),
        ("exponential", lambda t: 0.01**t),
    ],
)
def test_schedules_follow_their_formula(name, formula):
    made = schedule(name, 0.3, 100)
    for step in (0, 1, 50, 99, 100):
        np.testing.assert_allclose(made(step), 0.3 * formula(step / 100), rtol=1e-5, atol=1e-7)


def test_inverse_square_root_and_warmup():
    made = schedule("inverse_sqrt", 0.3, 100, warmup=10)
    np.testing.assert_allclose([made(0), made(5), made(10), made(13)], [0, 0.15, 0.3, 0.15], rtol=1e-6)
