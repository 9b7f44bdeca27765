"""Claims of the paper, judged on a results tree: each by a rule that is written down and can go either way."""

from tracking.claims.benchmark import BENCHMARK_CLAIMS
from tracking.claims.judging import Claim, ClaimRule, Verdict, claims_table, judge
from tracking.claims.proxies import PROXY_CLAIMS
from tracking.claims.theory import THEORY_CLAIMS

PAPER_CLAIMS: tuple[ClaimRule, ...] = (*THEORY_CLAIMS, *PROXY_CLAIMS, *BENCHMARK_CLAIMS)
"""In the order in which the paper makes them."""

__all__ = ["PAPER_CLAIMS", "Claim", "Verdict", "claims_table", "judge"]
