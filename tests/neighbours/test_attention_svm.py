"""Attention as an SVM: W tends to the max-margin direction."""


def test_attention_is_an_svm(run):
    """W / ‖W‖ comes near the certified direction as attention saturates."""
    at = run("attention_svm", "seeds=4", "phases.train.steps=600")
    assert (at("feasible") == 1).all()
    assert (at("duality_gap") < 1e-9).all()
    start, end = at("one_minus_cosine", 0), at("one_minus_cosine")
    assert (end < 0.05).all()
    assert (end < start / 5).all()
    assert (at("largest_attention") > 0.99).all()
