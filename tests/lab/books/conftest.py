import pytest

SIZES = ("data.vocab_size=12", "data.relevant=4", "data.length=4", "data.sequences=20")
FLOW = (*SIZES, "model.dim=256")
LAW = (*SIZES, "axes.model.dim=[64,256]")


@pytest.fixture(scope="session")
def plan():
    """Overrides that reduce the claims to test sizes, with the same corpus shapes in all studies."""
    relevant = "probes.own.1.relevant=4"
    return {
        "law-independent": LAW,
        "law-assumption1": LAW,
        "law-classes": LAW,
        "base": (*FLOW, relevant),
        "independent": (*FLOW, relevant),
        "several": (*FLOW, relevant, "axes.data.relevant_per_sequence=[2]"),
        "beyond": (*SIZES, relevant, "cells=[{model.dim=256, phases.step.step_size=0.0}]"),
        "joint": (*FLOW, relevant, "phases.together.until_norm=1e3"),
        "findings:label_window/study": (*FLOW, "axes={}"),
        "findings:which_cover/claim": ("phases.all.until_log_loss=-100",),
        "findings:which_mixture/claim": ('blocks={"two relevant"={}}',),
    }
