"""The built-in things keep the protocols that are written down for the user's."""

import pytest

import jaxattn as ja
from jaxattn import base, losses, spec
from jaxattn.study import starts
from jaxattn.study.concepts import DATA, LOSS, MODEL, PHASE, START
from jaxattn.study.kinds import _has
from jaxattn.study.own import OwnCorpus, OwnGenerator, OwnLoss, OwnProbe, OwnStart

SIZES = {"vocab_size": 12, "length": 4, "sequences": 10}
KEPT = [
    (base.Generator, ja.data.Independent(**SIZES, relevant=4)),
    (base.Generator, ja.data.Xor(**SIZES)),
    (base.Source, ja.data.Csv(path="x.csv", text="text", label="label")),
    (base.Model, ja.models.OneLayer(dim=3)),
    (base.Model, ja.models.TwoLayer(dim=3)),
    (base.Loss, losses.Hinge()),
    (base.Start, starts.Zero()),
    (base.Phase, ja.dynamics.OneStep(name="a", step_size=1.0)),
    (base.Phase, ja.dynamics.Descent(name="a", train=("p",), optimizer="sgd", step_size=1.0, steps=2)),
    (base.Phase, ja.dynamics.ExactFlow(name="a", until_norm=2.0)),
    (base.Probe, ja.probes.Fit()),
    (base.Probe, ja.probes.OneStepError()),
    (base.PhaseProbe, ja.probes.MaxMarginDirection()),
]


@pytest.mark.parametrize(("protocol", "thing"), KEPT)
def test_a_built_in_thing_keeps_its_protocol(protocol, thing):
    assert isinstance(thing, protocol)
    others = {base.Generator, base.Source, base.Model, base.Phase, base.Probe, base.PhaseProbe} - {protocol}
    assert not [other for other in others if isinstance(thing, other)]


@pytest.mark.parametrize("concept", [DATA, MODEL, LOSS, START, PHASE], ids=lambda concept: concept.name)
def test_every_built_in_class_has_what_is_asked_of_the_users(concept):
    for target in concept.known.values():
        assert any(all(_has(target, name) for name in names) for names in concept.methods)


def test_holders_of_functions_keep_the_protocols_that_they_stand_for():
    for holder, protocol in (
        (OwnGenerator, base.Generator),
        (OwnCorpus, base.Source),
        (OwnLoss, base.Loss),
        (OwnStart, base.Start),
        (OwnProbe, base.Probe),
    ):
        public = [name for name in vars(protocol) if not name.startswith("_") or name == "__call__"]
        assert [name for name in public if not hasattr(holder, name)] == []


def test_whatever_is_asked_of_a_class_is_in_its_protocol():
    wanted = [
        (DATA, (base.Generator, base.Source)),
        (MODEL, (base.Model,)),
        (LOSS, (base.Loss,)),
        (START, (base.Start,)),
        (PHASE, (base.Phase,)),
    ]
    for concept, protocols in wanted:
        for names, protocol in zip(concept.methods, protocols, strict=True):
            # `steps` belongs to jaxattn.Phase, whose own `probe_steps` needs it.
            assert [name for name in names if not hasattr(protocol, name)] in ([], ["steps"])
    assert issubclass(ja.Generator, spec.Spec)
