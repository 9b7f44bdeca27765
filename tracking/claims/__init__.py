"""Claims judged on a results tree, each by a rule that is written down and can go either way; and checked identities."""

from tracking.claims.benchmark import BENCHMARK_CLAIMS
from tracking.claims.front import front_claims
from tracking.claims.judging import (
    Claim,
    ClaimRule,
    Kind,
    Verdict,
    can_fail,
    claims_table,
    identities,
    identities_table,
    judge,
)
from tracking.claims.proxies import PROXY_CLAIMS
from tracking.claims.theory import IDENTITIES
from tracking.tree import Tree

PAPER_CLAIMS: tuple[ClaimRule, ...] = (*PROXY_CLAIMS, *BENCHMARK_CLAIMS)
"""In the order in which the paper makes them."""


def judge_all(tree: Tree) -> tuple[Claim, ...]:
    """Our claims, as far as the tree is about them; the paper's; the identities."""
    return judge(tree, (*front_claims(tree), *PAPER_CLAIMS, *IDENTITIES))


__all__ = [
    "IDENTITIES",
    "PAPER_CLAIMS",
    "Claim",
    "Kind",
    "Verdict",
    "can_fail",
    "claims_table",
    "identities",
    "identities_table",
    "judge",
    "judge_all",
]
