"""A function of NumPy over items: in order, on several threads, with one thread of BLAS each."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from jaxattn.cores import map_on_cores


def test_what_comes_back_is_in_the_order_of_the_items():
    assert map_on_cores(lambda x, y: x - y, range(50), range(50, 100)) == [-50] * 50
    assert map_on_cores(str, []) == []


def test_two_items_are_worked_on_at_once(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    # A barrier is passed by two together only.
    meeting = threading.Barrier(2, timeout=10)
    assert sorted(map_on_cores(lambda _: meeting.wait(), range(2))) == [0, 1]


def test_blas_has_one_thread_meanwhile_and_its_own_number_again():
    def threads(_=None):
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    np.linalg.svd(np.eye(2))
    before = threads()
    assert {one for found in map_on_cores(threads, range(4)) for one in found} == {1}
    assert threads()[: len(before)] == before


def test_an_error_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        map_on_cores(lambda x: 1 / x, [1, 0])
