"""Claims: every statement of the theory, measured on many seeds and judged."""

from jaxattn.claims.rows import Claim, Row, Tolerance
from jaxattn.claims.scoreboard import CLAIMS, Scoreboard, run
from jaxattn.claims.studies import Plan, TextPlan

__all__ = ["CLAIMS", "Claim", "Plan", "Row", "Scoreboard", "TextPlan", "Tolerance", "run"]
