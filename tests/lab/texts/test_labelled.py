import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.settings import class_name
from jaxattn.lab.texts.labelled import IGNORED, class_numbers, plain_text


@pytest.mark.parametrize(
    ("written", "label"),
    [
        *((x, 1) for x in (1, 1.0, True, "1", "1.0", "+1", "1.", "True", "true", "TRUE")),
        *((x, -1) for x in (-1, "-1", -1.0, "-1.00")),
        *((x, None) for x in (None, float("nan"), "")),
        *((x, x) for x in ("nan", "NaN", "NA", "null", "None")),
        (0.5, "0.5"),
        ("02", "02"),
        ("pos", "pos"),
        ("1e3", "1e3"),
        (10**30, 10**30),
        (float("inf"), "inf"),
        ([1], [1]),
    ],
)
def test_labels_are_compared_in_normalised_form(written, label):
    assert plain_text(written) == label
    assert type(plain_text(written)) is type(label)


def test_a_class_may_have_several_raw_labels():
    numbers = class_numbers(((1, 2), "4", (5,)), ("3.0",))
    assert numbers == {1: 0, 2: 0, 4: 1, 5: 2, 3: IGNORED}
    assert [class_name(x) for x in ((1, 2), "4", (5,), [7, "a"])] == ["1+2", "4", "5", "7+a"]


@pytest.mark.parametrize("labels", [((1, 2), (2, 3)), ((1, "1.0"), 2), ("True", 1), (0, (1, 1))])
def test_repeated_label_is_rejected(labels):
    with pytest.raises(ja.InputError, match="occurs twice; list each label once"):
        class_numbers(labels, ())


def test_numpy_scalars_are_valid_labels():
    assert class_numbers((0, 1), ())[plain_text(np.int64(1).tolist())] == 1
