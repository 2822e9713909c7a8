import numpy as np
import pytest

from jaxattn import Study
from jaxattn.paper import compare, published
from jaxattn.paper.item import SWEEPS


def test_tables_have_as_many_values_as_places_and_name_their_source():
    for curve in published.CURVES:
        assert len(curve.values) == len(curve.centres) == (19 if "Yelp" in curve.name else 20)
        assert np.isfinite(curve.values).all()
        assert (np.diff(curve.centres) > 0).all()
        assert "2505.17282" in curve.source
    assert all("2505.17282" in number.source for number in published.NUMBERS)


def test_bin_centres_are_the_published_ones():
    assert published.BIN_CENTRES[0] == pytest.approx(-0.95, abs=0.005)
    assert published.BIN_CENTRES[-1] == pytest.approx(0.89, abs=0.006)


@pytest.mark.parametrize("curve", [published.MLP_EP, published.TWO_LAYER_EP])
def test_published_scores_are_u_shaped_by_our_own_measure(curve):
    rows, centres = np.array([curve.values]), np.array(curve.centres)
    assert compare.u_shape(rows, centres)[0] > 0.9
    assert abs(compare.lowest(rows, centres)[0]) < 0.1


def test_published_rows_of_yelp_change_their_sign_at_zero():
    for curve in (published.YELP_EV_2, published.YELP_EV_4):
        assert compare.sign_change(np.array([curve.values]), np.array(curve.centres))[0] > 0.9


def test_items_beside_published_bins_have_those_and_others_hold_every_token():
    for item in SWEEPS.glob("*.toml"):
        probes = Study.read(item).base.probes
        edges = np.linspace(probes.low, probes.high, probes.bins + 1)
        if item.stem.startswith(("imdb", "yelp", "fig", "mlp", "two_layer")) and item.stem != "yelp4":
            assert (edges[1:] + edges[:-1]) / 2 == pytest.approx(published.BIN_CENTRES)
    for name in ("topics", "xor", "negation", "yelp4", "k_class_law"):
        probes = Study.read(SWEEPS / f"{name}.toml").base.probes
        assert (probes.low, probes.high) == (-1, 1)
