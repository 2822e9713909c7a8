from jaxattn.engine.groups import compile_groups
from jaxattn.engine.plan import duration
from jaxattn.engine.runtime import estimate_runtime


def test_the_time_grows_with_the_work(study, tables):
    phases = tables()["phases"]
    short, long = (
        estimate_runtime(
            compile_groups(study(phases=[*phases[:1], phases[1] | {"steps": steps}]).cells)[0],
            [0, 1, 2, 3],
            lanes,
            1,
        )
        for steps, lanes in ((20, 4), (200_000, 400))
    )
    assert 0 < short < long / 20


def test_durations():
    assert [duration(x) for x in (3.4, 100.0, 150.0, 8000.0)] == ["3 s", "100 s", "2.5 min", "2.2 h"]
