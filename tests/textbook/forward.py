"""Models for one sequence, with gradients by hand.

x contains the token ids of a sequence of length T. Parameters are a dictionary of arrays. The read-out v is
(d, C), with C = 1 output for two classes and C = K outputs for K > 2. Every backward pass maps ∂L/∂f, (C,),
to the gradients of all parameters.
"""

import numpy as np


def softmax(a):
    """Return the softmax over the last axis."""
    e = np.exp(a - a.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_backward(q, d_q):
    """Return ∂L/∂a from q = softmax(a) and ∂L/∂q."""
    return q * (d_q - (q * d_q).sum(axis=-1, keepdims=True))


def pool(H, query):
    """Return h = Σ_i q_i H_i, q = softmax(H query), and a function from ∂L/∂h to ∂L/∂H and ∂L/∂query."""
    q = softmax(H @ query)

    def backward(d_h):
        d_scores = softmax_backward(q, H @ d_h)
        return np.outer(q, d_h) + np.outer(d_scores, query), H.T @ d_scores

    return q @ H, backward


def one_layer(params, x):
    """f = Σ_i q_i E_{x_i}·v with q = softmax(E_X p); for `key_query`, the query is W p."""
    E, p, v = params["E"], params["p"], params["v"]
    W = params.get("W")
    h, pool_backward = pool(E[x], p if W is None else W @ p)

    def backward(d_f):
        d_H, d_query = pool_backward(v @ d_f)
        gradients = {"E": rows(E, x, d_H), "v": np.outer(h, d_f)}
        if W is None:
            return gradients | {"p": d_query}
        return gradients | {"p": W.T @ d_query, "W": np.outer(d_query, p)}

    return h @ v, backward


def multi_head(params, x):
    """f = (1/H) Σ_h Σ_i q_i^h E_{x_i}·v_h with q^h = softmax(E_X p_h)."""
    E, heads = params["E"], len(params["p"])
    passes = [one_layer({"E": E, "p": params["p"][h], "v": params["v"][h]}, x) for h in range(heads)]

    def backward(d_f):
        each = [backward_of_head(d_f / heads) for _, backward_of_head in passes]
        total = {"E": sum(g["E"] for g in each)}
        return total | {name: np.stack([g[name] for g in each]) for name in ("p", "v")}

    return sum(f for f, _ in passes) / heads, backward


def mlp(params, x):
    """f = v·relu(h W + b) with h = Σ_i q_i E_{x_i}, q = softmax(E_X p)."""
    E, p, v, W, b = (params[name] for name in ("E", "p", "v", "W", "b"))
    h, pool_backward = pool(E[x], p)
    hidden = h @ W + b
    active = hidden > 0

    def backward(d_f):
        d_hidden = active * (v @ d_f)
        d_H, d_p = pool_backward(W @ d_hidden)
        gradients = {"E": rows(E, x, d_H), "p": d_p, "v": np.outer(hidden * active, d_f)}
        return gradients | {"W": np.outer(h, d_hidden), "b": d_hidden}

    return (hidden * active) @ v, backward


def two_layer(params, x, residual=False):
    """f = Σ_i q_i H_i·v with H = softmax(E_X W1 E_Xᵀ) E_X (+ E_X) and q = softmax(H W2 p)."""
    E, p, v = params["E"], params["p"], params["v"]
    identity = np.eye(E.shape[1])
    W1, W2 = params.get("W1", identity), params.get("W2", identity)
    X = E[x]
    A = softmax(X @ W1 @ X.T)
    h, pool_backward = pool(A @ X + residual * X, W2 @ p)

    def backward(d_f):
        d_H, d_query = pool_backward(v @ d_f)
        d_scores = softmax_backward(A, d_H @ X.T)
        d_X = A.T @ d_H + residual * d_H + d_scores @ X @ W1.T + d_scores.T @ X @ W1
        gradients = {"E": rows(E, x, d_X), "p": W2.T @ d_query, "v": np.outer(h, d_f)}
        return gradients | {"W1": X.T @ d_scores @ X, "W2": np.outer(d_query, p)}

    return h @ v, backward


def rows(E, x, d_X):
    """Return ∂L/∂E from ∂L/∂E_X; a token that occurs twice receives both rows."""
    d_E = np.zeros_like(E)
    np.add.at(d_E, x, d_X)
    return d_E


MODELS = {
    "one_layer": one_layer,
    "key_query": one_layer,
    "multi_head": multi_head,
    "mlp": mlp,
    "two_layer": two_layer,
    "two_layer_weights": two_layer,
}


def scores_and_values(kind, params):
    """Return the scores of tokens, (V,), and their values, (V, C). Heads are averaged."""
    E, p, v = params["E"], params["p"], params["v"]
    if kind == "multi_head":
        p, v = p.mean(axis=0), v.mean(axis=0)
    query = params.get("W2", np.eye(E.shape[1])) @ p
    if kind == "key_query":
        query = params["W"] @ p
    return E @ query, E @ v
