import dataclasses

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.results.tokens import final_tokens, named_tokens, top, with_classes


def test_seeds_that_share_a_corpus_are_averaged(results):
    run = results["text"]
    tokens = final_tokens(run, phase="joint")
    assert tokens.averaged
    assert tokens.over_seeds == "averaged over 4 seeds"
    assert len(tokens.table) == run.tokens["id"].nunique()
    rows = run.tokens[(run.tokens["phase"] == "joint") & (run.tokens["id"] == 17)]
    found = tokens.table.set_index("id").loc[17]
    assert found["Ep"] == pytest.approx(rows["Ep"].mean())
    assert found["alpha"] == rows["alpha"].iloc[0]
    assert not final_tokens(run, phase="joint", average=False).averaged


def test_seeds_with_different_corpora_are_pooled(results):
    tokens = final_tokens(results["dims"], cell=2)
    assert tokens.over_seeds == "6 seeds pooled"
    assert len(tokens.table) == 6 * 60


def test_failed_seeds_and_nonfinite_tokens_are_dropped(results):
    assert final_tokens(results["failed"], cell=2, phase="joint").seeds == 2
    assert final_tokens(results["failed"], cell=2, phase="embed").seeds == 4
    run = results["one_seed"]
    gaps = run.tokens.assign(
        posterior_difference=run.tokens["posterior_difference"].where(run.tokens["id"] != 3)
    )
    assert 3 not in set(final_tokens(dataclasses.replace(run, tokens=gaps)).table["id"])


def test_missing_token_table_raises(results):
    run = results["one_seed"]
    with pytest.raises(ja.InputError, match="no token table, because no phase has ended or the model has no"):
        final_tokens(dataclasses.replace(run, tokens=run.tokens.head(0)))
    with pytest.raises(ja.InputError, match="phase 'none': token tables exist only for embed, joint"):
        final_tokens(run, phase="none")
    with pytest.raises(ja.InputError, match="every seed failed"):
        final_tokens(dataclasses.replace(run, tokens=run.tokens.assign(Ep=np.nan)))


def test_top_tokens_have_the_largest_scores(results):
    tokens = final_tokens(results["text"], phase="joint")
    best = top(tokens, count=5)
    assert best["Ep"].tolist() == sorted(tokens.table["Ep"], reverse=True)[:5]


def test_top_tokens_list_each_token_once(results):
    best = top(final_tokens(results["classes"], phase="joint"), count=10)
    assert best["id"].is_unique
    tokens = final_tokens(results["classes"], phase="joint").table
    for row in best.itertuples():
        assert row.alpha == tokens.loc[tokens["id"] == row.id, "alpha"].max()


def test_top_tokens_of_different_corpora_are_those_of_the_first_seed(results):
    best = top(final_tokens(results["dims"]), count=10)
    assert set(best["seed"]) == {0}


def test_top_tokens_respect_min_count(results):
    tokens = final_tokens(results["text"], phase="joint")
    best = top(tokens, count=5, min_count=500)
    often = tokens.table[tokens.table["count"] >= 500]
    assert best["Ep"].tolist() == sorted(often["Ep"], reverse=True)[:5]
    assert best["count"].min() >= 500 > top(tokens, count=5)["count"].min()
    most = int(tokens.table["count"].max())
    with pytest.raises(ja.InputError, match=f"min_count = {most + 1}: no token occurs more than {most} "):
        top(tokens, min_count=most + 1)
    assert results["text"].top_tokens(number=5, min_count=500)["count"].min() >= 500


def test_with_classes_uses_class_names(results, configured):
    two = configured(results["text"], data={"labels": ["bad", "fine"]}).top_tokens(number=30)
    plain = results["text"].top_tokens(number=30)
    assert two["class"].tolist() == ["fine" if x > 0 else "bad" for x in plain["alpha"]]
    assert set(plain["class"]) == {1}
    balanced = with_classes(plain.assign(alpha=0.0), ("bad", "fine"))
    assert set(balanced["class"]) == {"–"}
    three = configured(results["classes"], data={"labels": [1, 2, 5]}).top_tokens(number=30)
    rows = results["classes"].top_tokens(number=30)
    assert three["class"].tolist() == [("1", "2", "5")[k] for k in rows["class"]]


def test_only_tokens_of_text_data_have_names(results):
    assert named_tokens(results["text"])
    assert not named_tokens(results["dims"])
