"""Optimisers, schedules and early stopping. Parameters and gradients are dictionaries of arrays.

The mean loss of a batch and its gradients come from a function `gradient(params, batch)`, where the batch
contains the indices of the examples.
"""

import math

import numpy as np

# Keys of a phase that are options of its optimiser.
OPTIONS = ("momentum", "nesterov", "loss_floor", "b1", "b2", "eps", "epsilon", "weight_decay")


def norm(gradients):
    """Return the norm of all gradients together."""
    return math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))


def learning_rate(k, step_size, steps, schedule="constant", warmup=0):
    """Return the learning rate of step k = 0, 1, ..., after a linear warm-up from 0."""
    if k < warmup:
        return step_size * k / warmup
    length, k = max(steps - warmup, 1), k - warmup
    share = min(k / length, 1.0)
    return (
        step_size
        * {
            "constant": lambda: 1.0,
            "cosine": lambda: (1 + math.cos(math.pi * share)) / 2,
            "linear": lambda: 1 - share,
            "exponential": lambda: 0.01 ** (k / length),
            "inverse_sqrt": lambda: (1 + k) ** -0.5,
        }[schedule]()
    )


def with_momentum(memory, gradients, momentum=0.0, nesterov=False):
    """Return the direction of SGD with momentum: m ← g + β m; with Nesterov's variant, g + β m."""
    for name, g in gradients.items():
        memory[name] = g + momentum * memory.get(name, 0.0)
    if not nesterov:
        return dict(memory)
    return {name: g + momentum * memory[name] for name, g in gradients.items()}


def adam_direction(memory, gradients, k, b1=0.9, b2=0.999, eps=1e-8):
    """Return Adam's direction m̂/(√v̂ + ε), with both moments divided by 1 - β^(k+1)."""
    found = {}
    for name, g in gradients.items():
        m, v = memory.get(name, (0.0, 0.0))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        memory[name] = m, v
        found[name] = (m / (1 - b1 ** (k + 1))) / (np.sqrt(v / (1 - b2 ** (k + 1))) + eps)
    return found


def update(phase, memory, k, params, value, gradients):
    """Return the trained parameters after step k of a phase with the given settings."""
    optimizer, of_rate = phase["optimizer"], ("step_size", "steps", "schedule", "warmup")
    rate = learning_rate(k, **{name: phase[name] for name in of_rate if name in phase})
    options = {name: x for name, x in phase.items() if name in OPTIONS}
    if "epsilon" in options:
        options["eps"] = options.pop("epsilon")
    decay = options.pop("weight_decay", 1e-4) if optimizer == "adamw" else 0.0
    size = norm(gradients)
    if optimizer == "polyak":
        if size:
            rate = min(rate, (value - options.get("loss_floor", 0.0)) / size**2)
        direction = gradients
    elif optimizer in ("adam", "adamw"):
        direction = adam_direction(memory, gradients, k, **options)
    else:
        if optimizer == "normalized" and size:
            gradients = {name: g / size for name, g in gradients.items()}
        direction = with_momentum(memory, gradients, **options)
    return {name: params[name] - rate * (d + decay * params[name]) for name, d in direction.items()}


def descent(phase, params, gradient, batches, validation_loss):
    """Yield (params, gradient evaluations) at steps 0, 1, ... of a phase.

    Args:
        phase: settings of the phase.
        params: initial parameters.
        gradient: (params, batch) -> mean loss, and gradients of the trained parameters.
        batches: batch of step k, k = 0, 1, ...; None for the full batch.
        validation_loss: params -> mean loss on the validation data.
    """
    memory, patience, every = {}, phase.get("patience", 0), phase.get("check_every", 10)
    best, best_loss, waited, evaluations = params, math.inf, 0, 0
    yield params, 0
    for k in range(phase["steps"]):
        if not patience or waited < patience:
            value, gradients = gradient(params, batches(k))
            params = params | update(phase, memory, k, params, value, gradients)
            evaluations += 1
            last = k + 1 == phase["steps"]
            if patience and ((k + 1) % every == 0 or last):
                found = validation_loss(params)
                if found < best_loss:
                    best, best_loss, waited = params, found, 0
                else:
                    waited += 1
                params = best if waited >= patience or last else params
        yield params, evaluations
