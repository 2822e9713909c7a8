import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import minimum_spanning_tree

import jaxattn as ja
from jaxattn.attention.scores import one_layer
from jaxattn.theory import Selection, certify_limit

LENGTH, TIED, BEHIND = 5, 3, 25.0


def draw(seed, dim):
    """Return parameters, a small corpus, and p with some tokens on top and the others far below."""
    rng = np.random.default_rng(seed)
    E = rng.normal(size=(8, dim))
    sequences = [rng.choice(8, LENGTH, replace=False).tolist() for _ in range(12)]
    corpus = ja.data.from_sequences(sequences, rng.choice([-1, 1], 12).tolist(), vocab_size=8)
    scores = np.where(np.arange(8) < TIED, rng.normal(size=8) / 2, -BEHIND - rng.normal(size=8))
    p = np.linalg.lstsq(E, scores)[0]
    v = np.linalg.lstsq(E, rng.normal(size=8))[0]
    return ja.models.one_layer.Params(E=E, p=p, v=v), corpus


def on_top(params, corpus):
    """Select tokens within BEHIND/2 of the top of their sequence."""
    return ja.theory.selection(
        params.p, ja.theory.Scores(params.E, corpus), tie=BEHIND / 2 / np.ptp(params.E @ params.p)
    )


def by_loops(params, corpus, chosen, bags_of):
    """Compute by loops the forces on tied tokens, their sizes, the repelled pairs and the attracted pairs."""
    bags, selected = bags_of
    a, values = params.E @ params.p, params.E @ params.v
    classes = []
    for group in selected(corpus, chosen):
        joined = [x for x in classes if x & set(group)]
        classes = [x for x in classes if not x & set(group)] + [set(group).union(*joined)]
    of = {s: min(x) for x in classes for s in x}
    gradient, gross, pulls = np.zeros(len(a)), np.zeros(len(a)), {}
    labels = np.asarray(corpus.targets)
    for tokens, top, y in zip(bags(corpus), selected(corpus, chosen), labels, strict=True):
        q = np.exp(a[top] - a[of[top[0]]])
        total = q.sum()
        f = q @ values[top] / total
        g = y / (1 + np.exp(y * f))
        force = g * q / total * (values[top] - f) / len(labels)
        gradient[top] -= force
        gross[top] += np.abs(force)
        for s in set(tokens) - set(top):
            leader = of.get(s, s)
            pull = g * np.exp(a[s] - a[leader]) / total * (f - values[s])
            pulls.setdefault((of[top[0]], leader), []).append(pull)
    net = {pair: sum(x) / sum(map(abs, x)) for pair, x in pulls.items()}
    return of, gradient, gross, net


def hessian_of_tied_loss(params, corpus, chosen, bags_of):
    """Return the Hessian at p of the loss of the tokens on top alone, by automatic differentiation."""
    values, tops = params.E @ params.v, bags_of[1](corpus, chosen)

    on_top = np.array([np.isin(np.arange(len(values)), top) for top in tops])

    def loss(p):
        f = jax.nn.softmax(jnp.where(on_top, params.E @ p, -jnp.inf), axis=1) @ values
        return jax.nn.softplus(-np.asarray(corpus.targets) * f).sum()

    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.hessian(loss))(jnp.asarray(params.p)))


@pytest.mark.parametrize(
    ("seed", "dim"),
    [
        (1, 12),
        *(
            pytest.param(seed, dim, marks=pytest.mark.more)
            for seed, dim in ((0, 5), (0, 12), (1, 5), (2, 5), (2, 12), (3, 5), (3, 12))
        ),
    ],
)
def test_direction_matches_an_independent_solver(seed, dim, loops, shortest):
    params, corpus = draw(seed, dim)
    chosen = on_top(params, corpus)
    of, gradient, gross, net = by_loops(params, corpus, chosen, loops)
    certificate = certify_limit(one_layer(params, corpus), params.p, chosen)
    pushed = {pair for pair, pull in net.items() if pull > 1e-7 or pair[0] == pair[1]}
    ties = [(leader, s) for s, leader in of.items() if s != leader]
    p = shortest(
        [params.E[s] - params.E[t] for s, t in net],
        [1.0 * (pair in pushed) for pair in net],
        [params.E[s] - params.E[t] for s, t in ties],
    )
    assert certificate.direction.feasible == (p is not None)
    if certificate.direction.feasible:
        np.testing.assert_allclose(certificate.direction.p, p, atol=1e-5 * max(1, np.abs(p).max()))
        drawn = [p @ (params.E[s] - params.E[t]) for (s, t), pull in net.items() if pull < -1e-7]
        np.testing.assert_allclose(certificate.attracting_rate, min(drawn, default=np.inf), atol=1e-4)
    if ties and not any(top == below for top, below in net):
        rates, leaders = score_differences(params.E, of), np.array([of.get(s, s) for s in range(8)])
        tied = np.bincount(leaders, minlength=8)[leaders] > 1
        force, size = gradient * tied @ rates, gross * tied @ np.abs(rates)
        np.testing.assert_allclose(certificate.gradient, np.abs(force / size).max(), rtol=1e-9)
        p_of = np.linalg.lstsq(params.E[tied] - params.E[leaders[tied]], rates[tied])[0]
        unit = np.sqrt(gross * tied @ rates**2)
        curved = p_of.T @ hessian_of_tied_loss(params, corpus, chosen, loops) @ p_of / np.outer(unit, unit)
        eigenvalues = np.linalg.eigvalsh(curved)
        np.testing.assert_allclose(
            certificate.curvature, eigenvalues[0] / np.abs(eigenvalues).max(), rtol=1e-6, atol=1e-9
        )


def score_differences(E, of):
    """Return the score of each token relative to the first in its group, in differences of near tokens."""
    edges = np.zeros((0, len(E)))
    for leader in set(of.values()):
        group = sorted(s for s in of if of[s] == leader)
        distances = np.linalg.norm(E[group][:, None] - E[group], axis=2)
        for s, t in zip(*minimum_spanning_tree(distances).nonzero(), strict=True):
            edges = np.append(edges, [np.eye(len(E))[group[s]] - np.eye(len(E))[group[t]]], axis=0)
    roots = np.array([of.get(s, s) for s in range(len(E))])
    return (np.eye(len(E)) - np.eye(len(E))[roots]) @ np.linalg.pinv(edges)


def by_hand(p):
    """(0, 1, 2) with y = 1 and (0, 1) with y = -1, E = 1: tied at a_0 = a_1, and 2 is pushed down."""
    corpus = ja.data.from_sequences([[0, 1, 2], [0, 1]], [1, -1], vocab_size=3)
    params = ja.models.one_layer.Params(E=np.eye(3), p=np.array(p, float), v=np.array([1.0, -1.0, -3.0]))
    mask = np.asarray(corpus.bags.index) < 2
    return params, corpus, Selection(mask & (np.asarray(corpus.bags.count) > 0))


def test_a_limit_matches_a_manual_calculation():
    """L = (softplus(-f) + softplus(f))/2, f = tanh(x/2): L'' = f'²/4 = 1/16 at x = 0, the only curvature."""
    certificate = certify_limit(
        one_layer(*by_hand([20, 20, -40])[:2]), np.array([20.0, 20, -40]), by_hand([0, 0, 0])[2]
    )
    assert certificate.holds
    np.testing.assert_allclose(certificate.direction.p, np.array([1, 1, -2]) / 3, atol=1e-12)
    assert certificate.gradient <= 1e-15
    assert certificate.curvature == 1.0
    assert certificate.attracting_rate == certificate.cancelled_rate == np.inf


def test_violated_conditions_are_reported():
    params, corpus, both = by_hand([20, 20, -40])
    # The tied tokens are not in balance.
    off = certify_limit(one_layer(params, corpus), np.array([20.5, 20, -40]), both)
    assert not off.holds
    assert off.gradient > 0.01
    # No force keeps token 2 on top with 0 and 1.
    everything = Selection(np.asarray(corpus.bags.count) > 0)
    assert not certify_limit(one_layer(params, corpus), np.zeros(3), everything).holds
    # With these values the balance is a maximum of the loss.
    flipped = ja.data.from_sequences([[0, 1, 2], [0, 1]], [1, 1], vocab_size=3)
    assert not certify_limit(one_layer(params, flipped), params.p, both).holds


def test_a_pair_with_an_attracting_force_must_be_separated_by_other_pairs():
    """(0, 1) with y = 1 and the better token 1 below: p = 0 does not move it away."""
    corpus = ja.data.from_sequences([[0, 1], [2, 3]], [1, 1], vocab_size=4)
    params = ja.models.one_layer.Params(E=np.eye(4), p=np.array([9.0, -9, 9, -9]), v=np.array([0.0, 1, 1, 0]))
    certificate = certify_limit(
        one_layer(params, corpus), params.p, ja.theory.selection(params.p, ja.theory.Scores(params.E, corpus))
    )
    assert certificate.direction.feasible
    assert certificate.attracting_rate == pytest.approx(0, abs=1e-12)
    assert not certificate.holds


@pytest.mark.parametrize("value", [1.0, 800.0])
def test_sequences_with_underflowing_weights_still_exert_force(value):
    """The weight e^-800 of the first sequence underflows, but no other force acts on its tokens."""
    corpus = ja.data.from_sequences([[0, 1], [2, 3]], [1, 1], vocab_size=4)
    E = np.array([[1.0, 0, 0.4], [0, 0, 0], [0, 1, 0.2], [0, 0.1, -0.3]])
    v = np.linalg.lstsq(E, np.array([value, 0.0, 1.0, 0.5]))[0]
    p = (
        50
        * ja.theory.max_margin(
            ja.theory.Scores(E, corpus),
            ja.theory.selection_from_tokens(np.array([True, False, True, False]), corpus),
        ).p
    )
    params = ja.models.one_layer.Params(E=E, p=p, v=v)
    chosen = ja.theory.selection(params.p, ja.theory.Scores(E, corpus))
    certificate = certify_limit(one_layer(params, corpus), params.p, chosen)
    assert certificate.holds
    assert certificate.cancelled_rate == np.inf
    np.testing.assert_allclose(
        certificate.direction.p, ja.theory.max_margin(ja.theory.Scores(E, corpus), chosen).p, rtol=1e-9
    )


def test_the_balance_includes_sequences_with_underflowing_weights():
    """As in the manual calculation, with two more sequences whose weights e^-900 underflow."""
    sequences, labels = [[0, 1, 2], [0, 1], [3, 4], [3, 4]], [1, -1, 1, 1]
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=5)
    params = ja.models.one_layer.Params(
        E=np.eye(5), p=np.array([20.0, 20, -40, 30, -30]), v=np.array([1.0, -1, -3, 900, 899])
    )
    chosen = Selection(
        np.isin(np.asarray(corpus.bags.index), [0, 1, 3]) & (np.asarray(corpus.bags.count) > 0)
    )
    assert certify_limit(one_layer(params, corpus), params.p, chosen).holds
    off = certify_limit(one_layer(params, corpus), params.p + 0.5 * np.eye(5)[0], chosen)
    assert off.gradient > 0.01


def test_tied_tokens_with_equal_embeddings_are_always_balanced():
    params, corpus, both = by_hand([20, 20, -40])
    E = np.array([[1.0, 0, 0], [1, 0, 0], [0, 0, 1]])
    certificate = certify_limit(one_layer(params.replace(E=E), corpus), np.array([20.0, 0, -40]), both)
    assert (certificate.gradient, certificate.curvature, certificate.isolated) == (0.0, np.inf, True)
    assert certificate.direction.feasible


def test_a_finite_limit_on_a_curve_of_equilibria_has_no_force():
    """Two sequences of the same three tokens only require f = 0; no force moves p along that curve."""
    corpus = ja.data.from_sequences([[0, 1, 2], [0, 1, 2]], [1, -1], vocab_size=3)
    params = ja.models.one_layer.Params(E=np.eye(3), p=np.zeros(3), v=np.array([1.0, -1.0, 0.0]))
    every = Selection(np.asarray(corpus.bags.count) > 0)
    certificate = certify_limit(one_layer(params, corpus), params.p, every)
    assert certificate.isolated
    assert certificate.holds


def scores_of(keys, values, sequences, labels, *_):
    """Return the scores of sequences of rows of `keys`."""
    X, values = np.array(keys, float)[sequences], np.array(values, float)[sequences]
    return ja.theory.scores.from_vectors(X, np.array(labels), values=values)


def vectors(keys, values, sequences, labels, p, until_norm=1e6):
    """Return the scores of sequences of rows of `keys`, and the path of the flow from p."""
    scores = scores_of(keys, values, sequences, labels)
    return scores, ja.dynamics.exact_flow(scores, np.array(p, float), until_norm=until_norm)


# For two equal sequences with opposite labels and output 0, the force on token 1 is of second order.
KEYS, VALUES = [[0.4, 1], [0, 0], [1, 0], [0, 0.5]], [0, 0.6, 1, 0.0]
IDLE = KEYS, VALUES, [[0, 1], [0, 1], [2, 1]], [1, -1, 1], [0.7, 0.1]


@pytest.mark.more
def test_a_second_order_pair_requires_a_rate_of_one_half():
    """p·(.4, 1) ≥ 1/2 and p·(1, 0) ≥ 1: the shortest is (1, .1)."""
    scores, path = vectors(*IDLE)
    limit = certify_limit(scores, path.p[-1], path.selection)
    assert limit.holds, limit.reason
    np.testing.assert_allclose(limit.direction.p, [1, 0.1], atol=1e-9)
    assert limit.distance < 1e-9


@pytest.mark.more
def test_an_unstable_point_has_no_certificate():
    scores = scores_of(*IDLE)
    for far in ([1e6, 0.0], [1e6, -2e5], [1e6, 4e5]):
        p = np.array(far)
        limit = certify_limit(scores, p, ja.theory.selection(p, scores))
        assert not limit.holds
        assert "not on course" in limit.reason


@pytest.mark.more
def test_top_tokens_with_equal_embeddings_are_merged():
    """k, k, z and k, z, z with k = (2, 1) and z = (0, 1): only the first coordinate matters."""
    keys, values = [[2.0, 1], [0, 1]], [1.0, -1]
    scores, path = vectors(keys, values, [[0, 0, 1], [0, 1, 1]], [1, 1], [0.1, 0.3])
    assert np.asarray(path.selection.mask).sum(axis=1).tolist() == [2, 1]
    limit = certify_limit(scores, path.p[-1], path.selection)
    assert limit.holds, limit.reason
    np.testing.assert_allclose(limit.direction.p, [0.5, 0], atol=1e-12)


def test_a_force_of_unknown_order_is_reported():
    """Token 2 once per label, counts 1, 1 and 2: Σ r V = 0, and at δ = 4/3 also Σ r V U + V S V = 0."""
    corpus = ja.data.from_sequences([[0, 1], [0, 1], [0, 1, 1], [2, 3]], [1, 1, -1, 1], vocab_size=4)
    keys, values = np.array([[0.2, 1], [0, 0], [1, 0], [0, 0]]), np.array([0, 4 / 3, 1, 0])
    scores, p = ja.theory.Scores(keys, corpus, values), np.array([1e3, 0.0])
    limit = certify_limit(scores, p, ja.theory.selection(p, scores))
    assert not limit.holds
    assert "unknown order" in limit.reason


def test_invalid_input_is_rejected():
    params, corpus, both = by_hand([20, 20, -40])
    three = ja.data.from_sequences([[0, 1]], [2], vocab_size=3, num_classes=3)
    with pytest.raises(ja.InputError, match="3 classes"):
        certify_limit(one_layer(params, three), params.p, both)
    with pytest.raises(ja.InputError, match="do not match"):
        certify_limit(one_layer(params, corpus), params.p[:2], both)
    with pytest.raises(ja.InputError, match="p contains NaN"):
        certify_limit(one_layer(params, corpus), params.p * np.nan, both)
    for bad in (np.nan, np.inf, -np.inf):
        scores = one_layer(params, corpus)
        keys, values = np.array(scores.keys, float), np.array(scores.values, float)
        keys[1, 0], values[-1] = bad, bad
        with pytest.raises(ja.InputError, match="keys contains NaN or inf"):
            certify_limit(ja.theory.Scores(keys, corpus, values), params.p, both)
        with pytest.raises(ja.InputError, match="values contains NaN or inf"):
            certify_limit(ja.theory.Scores(scores.keys, corpus, values), params.p, both)


def test_the_printed_form_gives_both_cosines_and_the_failed_condition():
    scores, near = scores_of(*IDLE), np.array([1e6, 1e5 + 3])
    limit = certify_limit(scores, near, ja.theory.selection(near, scores))
    text = " ".join(repr(limit).split())
    assert text.startswith(f"Limit(certified; 1 - cos {limit.angle:.3g} of p and p_*, ")
    assert f"{limit.distance:.3g} of score differences; p_*: SOLVED" in text
    far = np.array([1e6, 0.0])
    limit = certify_limit(scores, far, ja.theory.selection(far, scores))
    text = " ".join(repr(limit).split())
    assert text.startswith("Limit(p is not on course to p_*")
    assert f"1 - cos {limit.angle:.3g} of p and p_*" in text
