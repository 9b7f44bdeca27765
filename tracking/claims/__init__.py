"""Claims of the paper, judged on a results tree: each by a rule that is written down and can go either way."""

from tracking.claims.judging import Claim, Verdict, claims_table, judge
from tracking.claims.rules import PAPER_CLAIMS

__all__ = ["PAPER_CLAIMS", "Claim", "Verdict", "claims_table", "judge"]
