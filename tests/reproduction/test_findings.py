from jaxattn.reproduction.findings import AGREES, MEASURED, Finding, verdict
from jaxattn.results.judge import Estimate, at_least


def test_an_item_agrees_only_if_all_its_findings_do():
    good = Finding("", Estimate(1.0, 1.0, 1.0), "", at_least(0.9))
    bad = Finding("", Estimate(0.0, 0.0, 0.0), "", at_least(0.9))
    lone = Finding("", Estimate(0.0, 0.0, 0.0), "")
    assert verdict([good, lone]) == AGREES == "agrees"
    assert verdict([good, bad, good]) == "agrees in 2, differs in 1"
    assert verdict([lone]) == MEASURED == "measured"


def test_a_number_that_no_seed_changes_says_so():
    same = Finding("", Estimate(1.0, float("nan"), float("nan"), 6), "6 seeds", at_least(0.9))
    assert (same.verdict, same.text) == ("agrees", "1.00 whichever of 6 seeds is left out")
