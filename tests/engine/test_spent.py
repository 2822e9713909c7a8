"""What was spent: memory grows with what is held, and begins anew; time goes on over processes."""

import numpy as np
import pytest

from jaxattn.engine import spent


@pytest.mark.skipif(spent.peak_mib() is None, reason="no /proc on this system")
def test_the_peak_grows_with_what_is_held_and_is_forgotten():
    spent.forget_peak()
    before = spent.peak_mib()
    held = np.ones(2**27, np.uint8)
    largest = spent.peak_mib()
    # Parts of the process may have been paged out or freed in between.
    assert 100 <= largest - before <= 160
    del held
    assert spent.peak_mib() >= largest - 10
    spent.forget_peak()
    assert spent.peak_mib() <= largest - 100


def test_what_is_told_last_counts_whether_or_not_the_process_came_to_its_end():
    stopped = {"wall_time_s": 50.0, "peak_memory_mib": None}
    killed = {"wall_time_s": 70.0, "peak_memory_mib": 1e6}
    told = spent.start().after(stopped, killed).read()
    assert 70 <= told["wall_time_s"] < 71
    assert told["peak_memory_mib"] == 1e6
    assert 50 <= spent.start().after(stopped, {}).read()["wall_time_s"] < 51
