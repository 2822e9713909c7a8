"""The slider of the landing page shows the path of README's example."""

import json
import re
from pathlib import Path

import pytest

REACH = Path(__file__).parents[2] / "results" / "published" / "reach"
MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def shown():
    text = (REACH / "flow.html").read_text(encoding="utf-8")
    (state,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(state)


def numbers(readout):
    """Return log t, 1 - cos and ‖p‖ of a point."""
    found = re.fullmatch(rf"log t = (\S+); 1 {MINUS} cos = (\S+) \(angle \S+°\); ‖p‖ = (\S+)", readout)
    return [float(x.replace(MINUS, "-")) for x in found.groups()]


def test_slider_of_the_landing_page_ends_at_the_measured_distance(shown):
    measured = json.loads((REACH / "reach.json").read_text(encoding="utf-8"))
    end = measured["flow"][-1]
    time, distance, norm = numbers(shown[1]["readouts"][-1])
    assert time == pytest.approx(end["log_time"], rel=2e-3)
    assert distance == pytest.approx(end["distance"], rel=1e-2)
    assert norm == pytest.approx(measured["norm at the end"], rel=1e-3)


def test_slider_of_the_landing_page_moves_from_far_away_to_the_limit(shown):
    text, state = shown
    assert state["readouts"][0].startswith("t = 0;")
    path = [numbers(each) for each in state["readouts"][1:]]
    assert [time for time, *_ in path] == sorted(time for time, *_ in path)
    assert path[0][1] > 0.1 > 1e-6 > path[-1][1]
    # Before the flow, no token of a sequence has all attention; at the end, one token has.
    start, end = ([max(token[k] for token in row) for row in state["attention"]] for k in (0, -1))
    assert max(start) < 900
    assert min(end) > 990
    assert len(text) < 70_000
