"""Why metrics have no value, on planted results."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from jaxattn.results.empty import explain_empty


@pytest.fixture
def planted(results):
    """Add metrics to a run: values by name, the same for every seed; and the least count of its probes."""
    run = results["text"]

    def make(least, **metrics):
        rows = [(0, seed, "joint", 5, name, x) for name, x in metrics.items() for seed in range(4)]
        config = run.manifest["config"] | {"probes": {"min_count": least}}
        return dataclasses.replace(
            run,
            manifest=run.manifest | {"config": config},
            records=pd.concat([run.records, pd.DataFrame(rows, columns=list(run.records.columns))]),
        )

    return make


def test_it_names_the_least_count_that_leaves_no_token(planted):
    empty = {"spearman_Ev_tokens": np.nan, "spearman_Ep_signed_tokens": np.nan, "loss_of_mine": np.nan}
    (line,) = explain_empty(planted(10**7, **empty))
    assert line == (
        "spearman_Ep_signed_tokens, spearman_Ev_tokens: fewer than two tokens occur "
        "probes.min_count = 10000000 times; lower it"
    )
    # Enough tokens: the reason is another one.
    assert explain_empty(planted(45, **empty)) == []
    assert explain_empty(planted(10**7, spearman_Ev_tokens=0.3)) == []


def test_it_names_logarithms_of_zero(planted):
    (line,) = explain_empty(planted(45, log_gradient_norm_of_mine=-np.inf))
    assert line == "log_gradient_norm_of_mine: minus infinity, the logarithm of exactly zero"
