"""At which steps a study measures."""

import pytest

import jaxattn as ja
from jaxattn.core.errors import InputError

EMBED = ja.dynamics.OneStep(name="embed", step_size=1.0)
QUERY = ja.dynamics.Descent(name="query", train=("p",), optimizer="sgd", step_size=0.1, steps=20)
FLOW = ja.dynamics.ExactFlow(name="flow", until_norm=2.0, points=9)
EVERY_FOUR = [0, 4, 8, 12, 16, 20]


@pytest.mark.parametrize(
    ("settings", "query", "embed"),
    [
        ({}, [0, 1, 3, 7, 20], [0, 1]),
        ({"per_decade": 0}, [0, 20], [0, 1]),
        ({"steps": (5, 1)}, [0, 1, 5, 20], [0, 1]),
        ({"steps": (0, 20)}, [0, 20], [0, 1]),
        ({"every": 4}, EVERY_FOUR, [0, 1]),
        ({"every": 15}, [0, 15, 20], [0, 1]),
        ({"every": 1}, list(range(21)), [0, 1]),
        ({"steps": {"query": (5,)}}, [0, 5, 20], [0, 1]),
        ({"every": {"query": 4}}, EVERY_FOUR, [0, 1]),
        ({"every": 4, "steps": {"query": (5,)}}, [0, 5, 20], [0, 1]),
        ({"every": {"query": 4}, "steps": (5,)}, EVERY_FOUR, [0, 1]),
        ({"every": {"embed": 1}, "steps": (5,)}, [0, 5, 20], [0, 1]),
    ],
)
def test_steps_of_a_phase_are_log_spaced_listed_or_regular(settings, query, embed):
    probes = ja.Probes(**{"per_decade": 2} | settings)
    assert probes.steps_of(QUERY) == query
    assert probes.steps_of(EMBED) == embed


def test_rows_of_a_path_are_steps_too():
    assert ja.Probes().steps_of(FLOW) == list(range(9))
    assert ja.Probes(every=3).steps_of(FLOW) == [0, 3, 6, 8]


@pytest.mark.parametrize(
    ("probes", "said"),
    [
        ({"steps": [1, 30]}, "probes.steps: 30 is beyond the end, the longest phase has 20"),
        ({"steps": {"embed": [2]}}, "probes.steps.embed: 2 is beyond the end, the phase has 1"),
        ({"every": {"qury": 2}}, "probes.every.qury: no such phase; they are embed, query"),
        ({"every": 2, "steps": [1]}, "probes.every: probes.steps says the steps already; leave one out"),
        ({"every": {"query": 2}, "steps": {"query": [1]}}, "probes.every.query: probes.steps.query says"),
        ({"every": 0}, r"probes.every: .*>= 1"),
        ({"steps": [-1]}, r"probes.steps\[0\]: .*>= 0"),
    ],
)
def test_steps_that_cannot_be_are_refused_in_one_line(study, probes, said):
    with pytest.raises(InputError, match=said) as error:
        study(probes=probes)
    assert "\n" not in str(error.value)


def test_steps_are_held_against_the_phases_of_every_cell(study):
    probes = {"steps": {"query": [15]}, "min_count": 1}
    assert len(study(probes=probes, axes={"phases.query.steps": [16, 20]}).cells) == 2
    with pytest.raises(InputError, match="15 is beyond the end, the phase has 10"):
        study(probes=probes, axes={"phases.query.steps": [10, 20]})


def test_steps_may_be_swept_and_set_by_key(study):
    cells = study(axes={"probes.every": [4, 10]}).cells
    query = cells[0].setting.phases[1]
    assert [cell.setting.probes.steps_of(query) for cell in cells] == [EVERY_FOUR, [0, 10, 20]]
