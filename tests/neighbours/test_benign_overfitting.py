"""Benign overfitting: noise is fitted by noise."""


def test_overfitting_is_benign(run):
    """Flipped labels are fitted and test data are right all the same; noise tokens fit what is flipped."""
    overrides = ("data.dim=400", "phases.train.step_size=0.05", "phases.train.steps=400")
    at = run("benign_overfitting", *overrides, "data.test_sequences=200")
    assert at("train_accuracy") == 1
    assert at("test_accuracy") > 0.95
    assert at("attention_clean") > 0.9
    assert at("attention_flipped") < 0.3
