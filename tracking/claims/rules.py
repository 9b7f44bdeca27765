"""All rules, in the order in which the paper makes its claims."""

from __future__ import annotations

from tracking.claims.benchmark import BENCHMARK_CLAIMS
from tracking.claims.judging import ClaimRule
from tracking.claims.proxies import PROXY_CLAIMS
from tracking.claims.theory import THEORY_CLAIMS

PAPER_CLAIMS: tuple[ClaimRule, ...] = (*THEORY_CLAIMS, *PROXY_CLAIMS, *BENCHMARK_CLAIMS)
