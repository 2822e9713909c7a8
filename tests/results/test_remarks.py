"""What is said of metrics without a value or over few tokens, on planted results."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from jaxattn.results.remarks import remarks


@pytest.fixture
def planted(results):
    """Add metrics to a run: values by name, the same for every seed; and settings of its probes."""
    run = results["text"]

    def make(least, high=1.0, **metrics):
        rows = [(0, seed, "joint", 5, name, x) for name, x in metrics.items() for seed in range(4)]
        config = run.manifest["config"] | {"probes": {"min_count": least, "low": -1.0, "high": high}}
        return dataclasses.replace(
            run,
            manifest=run.manifest | {"config": config},
            records=pd.concat([run.records, pd.DataFrame(rows, columns=list(run.records.columns))]),
        )

    return make


def test_it_names_the_least_count_that_leaves_no_token(planted):
    empty = {"spearman_Ev_tokens": np.nan, "spearman_Ep_signed_tokens": np.nan, "loss_of_mine": np.nan}
    (line,) = remarks(planted(10**7, **empty))
    assert line == (
        "spearman_Ep_signed_tokens, spearman_Ev_tokens: fewer than two tokens occur "
        "probes.min_count = 10000000 times; lower it"
    )
    # Enough tokens: the reason is another one.
    assert remarks(planted(45, **empty)) == []
    assert remarks(planted(45, spearman_Ev_tokens=0.3)) == []


def test_it_names_logarithms_of_zero(planted):
    (line,) = remarks(planted(45, log_gradient_norm_of_mine=-np.inf))
    assert line == "log_gradient_norm_of_mine: minus infinity, the logarithm of exactly zero"


def test_it_counts_tokens_where_they_are_few(planted):
    run = planted(1)
    ranked = np.sort(run.tokens[run.tokens["cell"] == 0].drop_duplicates("id")["count"])[::-1]
    least = int(ranked[4])
    (line,) = remarks(planted(least, spearman_Ev_tokens=0.9))
    number = int((ranked >= least).sum())
    assert line == (
        f"spearman_Ev_tokens: over {number} tokens of a seed, those that occur probes.min_count = {least} "
        "times; lower it"
    )


def test_it_counts_tokens_that_are_in_no_bin(planted):
    run = planted(1)
    tokens = run.tokens[(run.tokens["cell"] == 0) & (run.tokens["count"] > 0)].drop_duplicates("id")
    high = float(np.sort(tokens["posterior_difference"])[-4] + 1e-4)
    number = int((tokens["posterior_difference"] > high + 1e-6).sum())
    (line,) = remarks(planted(1, high=high, spearman_Ev_bins=0.9))
    assert line.startswith(f"spearman_Ev_bins: without {number} tokens of a seed whose posterior difference")
    assert remarks(planted(1, high=1.0, spearman_Ev_bins=0.9)) == []


def test_it_says_which_tokens_are_important_and_by_which_definition(planted):
    for least in (1, 30):
        run = planted(least, important_selected=0.5, important_tied=0.0)
        run.manifest["config"]["probes"]["important"] = 0.5
        (line,) = remarks(run)
        tokens = run.tokens[run.tokens["cell"] == 0].drop_duplicates(["seed", "id"])
        large = tokens["posterior_difference"].abs() >= 0.5
        assert (tokens["seed"].nunique(), large.any()) == (4, True)
        counts = [
            (large & ((tokens["count"] >= least) == often)).groupby(tokens["seed"]).sum()
            for often in (True, False)
        ]
        words = [str(x.min()) if x.min() == x.max() else f"{x.min()} to {x.max()}" for x in counts]
        assert line.startswith("important_mass, important_selected, important_tied: important is |posterior ")
        assert (
            f"≥ 0.5 (probes.important) in {least} or more occurrences (probes.min_count): {words[0]} " in line
        )
        assert line.endswith(f"without {words[1]} rarer ones" if counts[1].any() else "tokens of a seed")
    run = planted(1, important_selected=0.5)
    run.manifest["config"]["probes"]["important"] = 0.5
    # Tables may show some metrics alone.
    assert remarks(run)[0].startswith("important_mass, important_selected: important is |posterior differ")
