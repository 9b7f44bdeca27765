"""Every rule can give every verdict, on trees made by hand; on the paper's printed numbers it finds what a pencil did."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tracking.claims import IDENTITIES, PAPER_CLAIMS, Verdict, claims_table, identities_table, judge, judge_all
from tracking.claims.front import front_claims
from tracking.claims.judging import EVERY, MOST, Case, ClaimRule
from tracking.paper import read_paper

GAUSSIAN = ("lda", "qda", "lda_mix", "qda_mix", "lda_2c")


def etas(made, **values):
    """A cell with the five Gaussian proxies at these eta_max; 0 is not admissible."""
    proxies = dict.fromkeys(GAUSSIAN, 0.5) | values
    return made.cell(
        **{name: made.method(name.replace("_", "-"), taught=made.target(eta)) for name, eta in proxies.items()}
    )


def benchmark(made, **changes):
    """A cell with every method alike (KL 0.1 and 0.2, Acc_f 0.5, RTE 0.1), except for what is given."""
    return made.cell(
        **(made.every_method() | {name: made.method(name.replace("_", "-"), **c) for name, c in changes.items()}),
        retrain=made.reference(kl_t=0, kl_f=0, acc_f=0.6),
    )


def taught(made, network, last, target):
    method = made.method("lda-2c", kl_f=network, last={"kl_f": last}, taught=made.target(0.5, kl_f=target))
    return made.cell(lda_2c=method)


def bounded(made, **bound):
    return made.cell(lda=made.method("lda", taught=made.target(0.5, bound=bound)))


def curved(made, *points):
    return made.cell(lda=made.method("lda", taught=made.target(0.5, h_curve=points)))


EXAMPLES = {
    "tight-bound": (
        lambda made: bounded(made, tight_bound=0.4, measured=0.4),
        lambda made: bounded(made, tight_bound=0.4, measured=0.41),
    ),
    "provable-decrease": (
        lambda made: bounded(made, kl_retrain_base=0.8, measured=0.8),
        lambda made: bounded(made, kl_retrain_base=0.8, measured=0.9),
    ),
    "h-convex": (
        lambda made: curved(made, (0.0, 0.0), (0.2, -0.1), (1.0, 0.5)),
        lambda made: curved(made, (0.0, 0.0), (0.2, 0.2), (1.0, 0.5)),
    ),
    "eta-below-one": (lambda made: etas(made, qda=0.99), lambda made: etas(made, qda=1.0)),
    "lda-mix-least-eta": (lambda made: etas(made, lda_mix=0.05), lambda made: etas(made, lda=0.05)),
    "eta-ordering": (
        lambda made: etas(made, qda=0.58, lda=0.46, lda_2c=0.32, qda_mix=0.20, lda_mix=0.05),
        lambda made: etas(made, qda=0.58, lda=0.46, lda_2c=0.46, qda_mix=0.20, lda_mix=0.05),
    ),
    "admissible-when-structured": (lambda made: etas(made), lambda made: etas(made, lda=0.0)),
    "richer-more-admissible": (lambda made: etas(made, lda=0.0, qda=0.0), lambda made: etas(made, lda_2c=0.0)),
    "naive-fail-on-random": (lambda made: etas(made, lda=0.0, qda=0.0), lambda made: etas(made, lda=0.0)),
    "dir-dramatic-for-subclasses": (
        lambda made: benchmark(made, dir={"kl_f": 0.4}),
        lambda made: benchmark(made, dir={"kl_f": 0.39}),
    ),
    "distilled-beats-target": (
        lambda made: taught(made, network=0.4, last=0.6, target=0.5),
        lambda made: taught(made, network=0.5, last=0.5, target=0.5),
    ),
    "distilled-beats-target-last": (
        lambda made: taught(made, network=0.4, last=0.4, target=0.5),
        lambda made: taught(made, network=0.4, last=0.6, target=0.5),
    ),
    "closest-in-subclass": (
        lambda made: benchmark(made, dir_2c={"kl_f": 0.1}),
        lambda made: benchmark(made, ga={"kl_f": 0.1}),
    ),
    "never-inverted": (
        lambda made: benchmark(made, lda_2c={"kl_f": 0.1}),
        lambda made: benchmark(made, salun={"kl_f": 0.1}),
    ),
    "lda-2c-before-dir-2c": (
        lambda made: benchmark(made, lda_2c={"kl_f": 0.1}),
        lambda made: benchmark(made, dir_2c={"kl_f": 0.1}),
    ),
    "dir-2c-too-confident": (
        lambda made: benchmark(made, dir_2c={"acc_f": 0.61}),
        lambda made: benchmark(made, dir_2c={"acc_f": 0.59}),
    ),
    "scrub-unstable": (
        lambda made: benchmark(made, scrub={"kl_t": 0.1, "last": {"kl_t": float("inf")}}),
        lambda made: benchmark(made, scrub={"kl_t": 0.1, "last": {"kl_t": 0.19}}),
    ),
    "ga-unstable": (
        lambda made: benchmark(made, ga={"kl_t": 0.1, "last": {"kl_t": 0.2}}),
        lambda made: benchmark(made, ga={"kl_t": 0.1, "last": {"kl_t": 0.19}}),
    ),
    "proxies-stable": (
        lambda made: benchmark(made, dir_2c={"kl_t": 0.1, "last": {"kl_t": 0.19}}),
        lambda made: benchmark(made, dir_2c={"kl_t": 0.1, "last": {"kl_t": 0.2}}),
    ),
    "random-labels-over-unlearn": (
        lambda made: benchmark(made, rl_ft={"acc_f": 0.4}, salun={"acc_f": 0.1}),
        lambda made: benchmark(made, rl_ft={"acc_f": 0.51}, salun={"acc_f": 0.1}),
    ),
    "ascent-over-unlearns": (
        lambda made: benchmark(made, ga={"acc_f": 0.0}, ga_ft={"acc_f": 0.4}),
        lambda made: benchmark(made, ga={"acc_f": 0.0}, ga_ft={"acc_f": 0.9}),
    ),
    "cheap": (
        lambda made: benchmark(made, ft={"rte": 0.2}),
        lambda made: benchmark(made, ft={"rte": 0.19}),
    ),
}
SCENARIO = {"naive-fail-on-random": "random"}
"""Where a claim is not about the subclass scenario."""


def verdicts(tree):
    return {claim.name: claim.verdict for claim in judge_all(tree)}


def test_every_claim_has_an_example():
    assert [rule.name for rule in (*IDENTITIES, *PAPER_CLAIMS)] == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_can_give_every_verdict(made, name):
    true, false = EXAMPLES[name]
    scenario = SCENARIO.get(name, "subclass")
    for cell, verdict in ((true(made), "holds"), (false(made), "does not hold"), (made.cell(), "cannot be judged")):
        assert verdicts(made.tree(made.variant(cell, scenario=scenario)))[name] == verdict


def test_proxies_that_unlearn_nothing_neither_confirm_nor_refute(made):
    """lda-2c is idle in one of two seeds: its last epoch is its best, it costs nothing, and it is its own target."""
    idle = made.method("lda-2c", rte=0.9, kl_t=0.1, last={"kl_t": 0.9}, taught=made.target(0.0, kl_f=0.9))
    tree = made.tree(
        made.variant(benchmark(made, ft={"rte": 0.2}), benchmark(made, ft={"rte": 0.2}) | {"lda-2c": idle})
    )
    found = {claim.name: claim for claim in judge(tree, PAPER_CLAIMS)}
    assert found["proxies-stable"].verdict is Verdict.HOLDS
    assert found["cheap"].verdict is Verdict.HOLDS
    assert "lda-2c" not in found["cheap"].evidence
    assert "lda-2c" not in found["distilled-beats-target"].evidence


def test_run_times_of_a_shared_machine_are_not_judged(made):
    cell = benchmark(made, ft={"rte": 0.9}) | {"floor": made.reference(rte=2.4)}
    assert verdicts(made.tree(made.variant(cell)))["cheap"] is Verdict.OPEN


def test_eta_is_compared_only_where_the_proxies_are_admissible_in_every_seed(made):
    tree = made.tree(made.variant(etas(made, lda_mix=0.0), etas(made, lda_mix=0.4)))
    found = verdicts(tree)
    assert found["lda-mix-least-eta"] is found["eta-ordering"] is Verdict.OPEN
    assert found["eta-below-one"] is Verdict.HOLDS


def test_a_method_that_some_seeds_lack_is_not_judged(made):
    cells = [benchmark(made), benchmark(made)]
    del cells[1]["scrub"]
    found = verdicts(made.tree(made.variant(*cells)))
    assert found["scrub-unstable"] is found["closest-in-subclass"] is Verdict.OPEN
    assert found["ga-unstable"] is Verdict.FAILS


def test_a_share_of_the_cases_decides_and_the_exceptions_are_named(made):
    variants = [made.variant(made.cell(), key=key) for key in range(8)]

    def rule(share, n_true):
        cases = [Case(variant, key < n_true, f"{key} nats") for key, variant in enumerate(variants)]
        return ClaimRule("n", "tab:x", "All is well.", "It is", share, lambda tree: cases, needs="x", in_paper=(1, 2))

    tree = made.tree(*variants)
    expected = [(EVERY, 8, "holds"), (EVERY, 7, "does not hold"), (MOST, 6, "holds"), (MOST, 5, "does not hold")]
    for share, n_true, verdict in expected:
        (claim,) = judge(tree, [rule(share, n_true)])
        assert claim.verdict == verdict
    (claim,) = judge(tree, [rule(MOST, 4)])
    name = "cifar10/r50/mlp1/subclass"
    assert claim.rule == "It is; to hold, in at least three quarters of the cases"
    assert claim.evidence == (
        f"true in 4 of 8 cases, such as {name}/0 (0 nats); "
        f"not in {name}/4 (4 nats); {name}/5 (5 nats); {name}/6 (6 nats); and 1 more"
    )
    assert claim.in_paper == "true in 1 of 2 cases"


def test_the_table_of_claims_has_a_row_for_each(made):
    claims = judge_all(made.tree(made.variant(etas(made))))
    table, checked = claims_table(claims), identities_table(claims)
    assert [row.name for row in (*checked.rows, *table.rows)] == list(EXAMPLES)
    assert {row.name: row.cells[0].text for row in table.rows}["admissible-when-structured"] == "holds"


def test_what_is_true_by_algebra_is_said_not_to_be_violated_and_never_to_hold(made):
    for cell, said in (
        (bounded(made, tight_bound=0.4, measured=0.4), "no violation"),
        (bounded(made, tight_bound=0.4, measured=0.41), "violated"),
        (made.cell(), "nothing to check"),
    ):
        rows = {row.name: row.cells[0].text for row in identities_table(judge_all(made.tree(made.variant(cell)))).rows}
        assert rows["tight-bound"] == said


def paper_trees(made: SimpleNamespace):
    """The printed numbers as trees: benchmarks; recommendations, five seeds each; distillation."""
    paper = read_paper()

    def variant(published, *cells):
        return made.variant(
            *cells,
            dataset=published.dataset,
            arch=published.arch,
            scenario=published.scenario,
            key=published.key,
            backbone="paper",
        )

    def numbers(row):
        found = {"kl_t": row["kl_test"], "kl_f": row["kl_forget"], "acc_t": row["acc_test"], "acc_f": row["acc_forget"]}
        return {name: printed.mean / (100 if name.startswith("acc") else 1) for name, printed in found.items()}

    def benchmarked(rows):
        methods = {
            name.replace("-", "_"): made.method(
                name, row["rte_percent"].mean / 100, {"kl_t": row["kl_last"].mean}, **numbers(row)
            )
            for name, row in rows.items()
            if name not in ("base", "retrain")
        }
        references = {name: made.reference(**numbers(rows[name])) for name in ("base", "retrain")}
        return made.cell(**methods, **references)

    def recommended(seed, proxies):
        targets = {
            proxy: made.target(cell.eta_max.mean, admissible=seed < cell.admissible_percent / 20)
            for proxy, cell in proxies.items()
        }
        return made.cell(seed, **{p.replace("-", "_"): made.method(p, taught=t) for p, t in targets.items()})

    def distilled(proxies):
        return made.cell(
            **{
                proxy.replace("-", "_"): made.method(
                    proxy,
                    kl_f=cell.distilled["kl_forget"].mean,
                    taught=made.target(None if "dir" in proxy else 0.1, kl_f=cell.target["kl_forget"].mean),
                )
                for proxy, cell in proxies.items()
                if cell.target is not None
            }
        )

    return (
        made.tree(*(variant(table.variant, benchmarked(table.rows)) for table in paper.benchmarks)),
        made.tree(*(variant(v, *(recommended(s, p) for s in range(5))) for v, p in paper.recommendations.items())),
        made.tree(*(variant(v, distilled(p)) for v, p in paper.distillation.items())),
    )


ON_RECOMMENDATIONS = {
    "eta-below-one",
    "lda-mix-least-eta",
    "eta-ordering",
    "admissible-when-structured",
    "richer-more-admissible",
    "naive-fail-on-random",
}


@pytest.mark.parametrize("rule", [rule for rule in PAPER_CLAIMS if rule.in_paper], ids=lambda rule: rule.name)
def test_a_rule_finds_in_the_printed_tables_what_is_counted_there_by_hand(made, rule):
    """``in_paper`` was counted with a pencil in paper.tex."""
    benchmarks, recommendations, distillation = paper_trees(made)
    tree = recommendations if rule.name in ON_RECOMMENDATIONS else benchmarks
    (claim,) = judge(distillation if rule.name == "distilled-beats-target" else tree, [rule])
    assert claim.evidence.startswith(claim.in_paper), claim.evidence


def raced(made, kl_f=0.1, kl_t=0.1, short=((0.02, 0.5), (0.2, 0.05)), base=2.0, **rows):
    """A cell in which ft is done at 0.9 % of the retrain's cost; short's records are (cost, KL) on both measures."""
    ft = made.raced("ft", (0.009, kl_f, kl_t))
    line = made.raced("short", *((cost, kl, kl) for cost, kl in short))
    return made.cell(ft=ft, short=line, base=made.reference(kl_f=base), **rows)


def test_some_method_is_closer_than_short_at_equal_cost_can_go_either_way(made):
    """short, on a straight line between (0.1 %, 1) and (10 %, 0.01), is at 0.1 at 1 % of the retrain's cost."""
    line = ((0.001, 1.0), (0.1, 0.01))
    for cell, verdict in (
        (raced(made, 0.09, 0.09, line), "holds"),
        (raced(made, 0.11, 0.09, line), "does not hold"),
        (raced(made, 0.09, 0.11, line), "does not hold"),
        (raced(made, 0.09, 0.09, line, base=0.08), "does not hold"),
        (raced(made, 0.09, 0.09, ((0.02, 1.0), (0.1, 0.01))), "cannot be judged"),
        (raced(made, 0.09, 0.09, line, floor=made.reference(rte=2.0)), "cannot be judged"),
    ):
        assert verdicts(made.tree(made.variant(cell)))["closer-than-short-subclass-1"] == verdict


def test_two_methods_that_are_closer_on_one_measure_each_do_not_make_one_that_is(made):
    line = ((0.001, 1.0), (0.1, 0.01))
    cell = raced(made, 0.01, 0.5, line, ga=made.raced("ga", (0.009, 0.5, 0.01)))
    assert verdicts(made.tree(made.variant(cell)))["closer-than-short-subclass-1"] == "does not hold"


def test_trees_without_short_have_no_such_claim(made):
    assert front_claims(made.tree(made.variant(etas(made)))) == ()
    names = [rule.name for rule in front_claims(made.tree(made.variant(raced(made), scenario="random")))]
    assert names == [f"closer-than-short-random-{cost}" for cost in ("0.3", "1", "3", "10")]
