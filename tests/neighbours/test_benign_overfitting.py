"""Benign overfitting: noise is fitted by noise."""

import numpy as np

SMALL = ("blocks=null", "figures=null", "seeds=1", "data.dim=400", "data.test_sequences=200")


def test_overfitting_is_benign(run):
    """Flipped labels are fitted and test data are right all the same; noise tokens fit what is flipped."""
    at = run("benign_overfitting", *SMALL, "phases.train.step_size=0.05", "phases.train.steps=400")
    assert at("train_accuracy") == 1
    assert at("true_accuracy") == 0.8
    assert at("test_accuracy") > 0.95
    assert at("attention_clean") > 0.9
    assert at("attention_flipped") < 0.3


def test_two_labels_of_each_class_are_flipped_in_training_alone(read):
    """By where the signal is: e_1 for class 1, e_2 for class -1."""
    data = read("benign_overfitting", *SMALL).dataset(0)
    for part, flipped in ((data.train, 2), (data.test, 0)):
        X, y = np.asarray(part.X), np.asarray(part.targets)
        true = np.where(X[:, 0, 0] > X[:, 0, 1], 1, -1)
        assert (true == 1).sum() == len(y) / 2
        assert [(y != true)[true == c].sum() for c in (1, -1)] == [flipped, flipped]
