"""The most memory held: it grows with what is held, and begins anew."""

import numpy as np
import pytest

from jaxattn.engine import peak


@pytest.mark.skipif(peak.mib() is None, reason="no /proc on this system")
def test_the_peak_grows_with_what_is_held_and_is_forgotten():
    peak.forget()
    before = peak.mib()
    held = np.ones(2**27, np.uint8)
    largest = peak.mib()
    # Parts of the process may have been paged out or freed in between.
    assert 100 <= largest - before <= 160
    del held
    assert peak.mib() >= largest - 10
    peak.forget()
    assert peak.mib() <= largest - 100
