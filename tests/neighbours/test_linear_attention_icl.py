"""In-context linear regression by linear attention."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.more
NAME = "linear_attention_icl"


@pytest.fixture
def prompts(code, read):
    read(NAME)  # imports the files of the item
    return lambda name: getattr(__import__("sys").modules[code(NAME, "Rows").__module__], name)


def attention(tokens, v, W):
    """Compute the last entry of Σ_h Σ_n V_h x_n (x_nᵀ W_h x_query) by loops over heads and tokens."""
    found = 0.0
    for v_head, W_head in zip(v, W, strict=True):
        for token in tokens:
            found += (v_head @ token) * (token @ W_head @ tokens[-1])
    return found


@pytest.mark.parametrize("rank", [0, 2])
def test_compressed_rows_preserve_the_loss_over_all_prompts(code, prompts, rank):
    """Second moments of cubic features keep the mean squared error of a loop over all prompts."""
    key, n, dim = jax.random.key(3), 10, 2
    rows = prompts("contexts")(key, sequences=n, dim=dim)
    task_key, token_key = jax.random.split(key)
    w = np.asarray(jax.random.normal(task_key, (n, dim)), float)
    w -= w.mean(axis=0)
    w = w @ np.linalg.inv(np.linalg.cholesky(w.T @ w / n)).T
    X, y = prompts("prompts")(jax.random.split(token_key, 1)[0], w.astype(np.float32), False)
    assert_allclose(w.T @ w / n, np.eye(dim), atol=1e-9)
    assert_allclose(X[:, :-1, -1], np.einsum("ntd,nd->nt", X[:, :-1, :-1], w), atol=1e-5)
    model = code(NAME, "LinearAttention")(heads=3, rank=rank, start=1.0)
    params = model.init(jax.random.key(1), rows, dtype=np.float32)
    params = {name: x + 0.3 for name, x in params.items()}
    ours = ((model.outputs(params, rows) - rows.targets) ** 2).mean()
    W = np.asarray(params["W"] if rank == 0 else np.einsum("hra,hrb->hab", params["k"], params["q"]), float)
    loop = [attention(tokens, np.asarray(params["v"], float), W) for tokens in np.asarray(X, float)]
    assert_allclose(ours, np.mean((np.array(loop) - y) ** 2), rtol=1e-3)


def test_closed_form_loss_is_the_least_squares_error(prompts):
    """The loss with all components learned is the least squares error on the features y_n x_n x_query."""
    rows = prompts("contexts")(jax.random.key(0), sequences=20_000, dim=2)
    D = 2
    pairs = list(zip(*np.triu_indices(D + 1), strict=True))
    used = [pairs.index((d, D)) * D + c for d in range(D) for c in range(D)]
    Z, y = np.asarray(rows.features, float)[:, used], np.asarray(rows.targets, float)
    rest = y - Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
    assert_allclose((rest**2).mean(), prompts("saddles")(D, False)[-1], rtol=0.03)


def test_loss_of_merged_attention_drops_once_at_the_predicted_time(run):
    """Half of the drop is at log(s∞/s0)/(4 ‖E y z‖ η), with s the coefficient that grows."""
    at = run(
        NAME,
        "blocks=null",
        "figures=null",
        "seeds=2",
        "data.white=true",
        "data.sequences=4000",
        "phases.train.steps=2400",
    )
    s0, s_end, slope = at("growing", 0), 2 / (0.25 * 36), 31 / 8
    predicted = np.log(s_end / s0 - 1) / (4 * slope * 0.001)
    steps = np.arange(0, 2401, 25)
    mean = np.mean([[at(f"component_{d}", step) for step in steps] for d in range(1, 5)], axis=0)
    reached = [np.interp(0.5, curve, steps) for curve in mean.T]
    assert_allclose(reached, predicted, rtol=0.06)
