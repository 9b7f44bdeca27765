"""The summary's sentences, on trees whose medians and counts are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tracking.claims import Claim, Kind, Verdict
from tracking.summary import Closest, closest, over_floor, summary
from tracking.tables.table import counted
from tracking.tree import Tree, TreeProblem
from unlearn_core import methods


def claim(verdict, kind=Kind.PAPER):
    return Claim("name", "label", "statement", "rule", verdict, "evidence", "not shown", kind)


def one(made, lda_2c=0.2, dir_2c=0.3, ft=0.4, ga=0.5, floor=0.1, floor_rte=1.0, eta=0.5, **place):
    """KL_f of four methods; KL_t is ten times it."""

    def row(name, kl_f, rte, **more):
        return made.method(name, rte=rte, kl_f=kl_f, kl_t=10 * kl_f, **more)

    rows = {
        "lda_2c": row("lda-2c", lda_2c, 0.1, taught=made.target(eta)),
        "dir_2c": row("dir-2c", dir_2c, 0.2),
        "ft": row("ft", ft, 0.6),
        "ga": row("ga", ga, 0.05),
        "floor": made.reference(rte=floor_rte, kl_f=floor),
    }
    return made.variant(made.cell(42, **rows), made.cell(0, **rows), **place)


def test_closest_is_among_what_the_benchmark_ranks(made):
    v = one(made)
    assert closest(v, methods.proxies(), "kl_f") == Closest(("lda-2c",), 0.2, among=2)
    assert closest(v, methods.baselines(), "kl_f") == Closest(("ft",), 0.4, among=2)
    assert closest(one(made, eta=0.0), methods.proxies(), "kl_f") == Closest(("dir-2c",), 0.3, among=1), (
        "the base is no rival"
    )
    whole, partial = (dict(entry) for entry in v.entries)
    del partial["lda-2c"]
    assert closest(replace(v, entries=(whole, partial)), methods.proxies(), "kl_f") == Closest(
        ("dir-2c",), 0.3, among=1
    )
    assert closest(made.variant(made.cell()), methods.proxies(), "kl_f") is None
    assert closest(one(made, lda_2c=float("inf")), ("lda-2c",), "kl_f") is None


def test_those_who_tie_are_named_together(made):
    assert str(closest(one(made, dir_2c=0.2), methods.proxies(), "kl_f")) == "all 2 alike"
    assert str(closest(one(made, lda_2c=0.4), ("lda-2c", "ft", "ga"), "kl_f")) == "lda-2c and ft alike"
    assert str(closest(one(made), methods.proxies(), "kl_f")) == "lda-2c"


def test_the_sentences_of_a_whole_tree(made):
    """KL_f, proxy over baseline: 0.2/0.4, 0.1/0.4, 0.8/0.4; over the floor: 2 (class), 1 and 0.5 (subclass)."""
    tree = made.tree(
        one(made, scenario="class"),
        one(made, dir_2c=0.1, scenario="subclass", key=0),
        one(made, lda_2c=0.8, dir_2c=0.9, floor=1.6, scenario="subclass", key=2),
    )
    verdicts = [Verdict.HOLDS, Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN]
    assert summary(tree, [claim(verdict) for verdict in verdicts]) == (
        "Closest at 10 % of a retrain's cost: on the forgotten rows (KL_f) lda-2c in 1, dir-2c in 1 and ft in 1 of 3 "
        "variants; on the test set (KL_t) lda-2c in 1, dir-2c in 1 and ft in 1 of 3 variants.",
        "Nothing can be compared with short, a retrain cut short: it has no record at that cost.",
        "3 variants (1 class and 2 subclass) of cifar10 (r50) with mlp1, 2 seeds each; 4 methods: 2 proxies and "
        "2 baselines.",
        "At the last epoch, whatever it costs, on KL_f, a proxy comes closest to the retrain in 2 of 3 variants (lda-2c in "
        "1, dir-2c in 1) and a baseline in 1 (ft in 1); the closest proxy's mean is 0.50 times the closest baseline's "
        "(median; 0.25 to 2.0).",
        "On KL_t, a proxy comes closest to the retrain in 2 of 3 variants (lda-2c in 1, dir-2c in 1) and a baseline in 1 "
        "(ft in 1); the closest proxy's mean is 0.50 times the closest baseline's (median; 0.25 to 2.0).",
        "KL_f of the closest proxy at its last epoch over the floor's: 2.0 for class and 0.75 for subclass (median over "
        "variants); below 1 in 1 of 3 variants. The floor, a second retrain from other initial weights, tells how far two "
        "retrains lie apart; it is not a lower bound.",
        "Of the retrain's run time (the paper's RTE), the proxies that unlearn take 15 % (median; 10 to 20) and ft 60 % "
        "(median; 60 to 60), in 3 of 3 variants.",
        "Of 4 claims of the paper, 2 hold on these results, 1 does not hold and 1 cannot be judged.",
        "No problem was found in the tree.",
    )


def test_only_claims_that_can_fail_are_counted_as_holding(made):
    claims = [
        *(claim(Verdict.HOLDS, Kind.IDENTITY) for _ in range(3)),
        claim(Verdict.FAILS),
        claim(Verdict.HOLDS, Kind.OWN),
    ]
    tree = made.tree(made.variant(made.cell()))
    said = [sentence for sentence in summary(tree, claims) if "laim" in sentence or "dentit" in sentence]
    assert said == [
        "Of 1 claim of this project, 1 holds on these results, 0 do not hold and 0 cannot be judged.",
        "Of 1 claim of the paper, 0 hold on these results, 1 does not hold and 0 cannot be judged.",
        "Checked identities, true by algebra: 3; no violation.",
    ]
    assert "Checked identities, true by algebra: 1; violated: name." in summary(
        tree, [claim(Verdict.FAILS, Kind.IDENTITY)]
    )


def test_run_times_count_where_the_floor_took_as_long_as_the_retrain(made):
    def about_time(*variants):
        (said,) = [sentence for sentence in summary(made.tree(*variants), ()) if "un time" in sentence]
        return said

    steady, shared = one(made), one(made, floor_rte=1.3, key=2)
    assert about_time(steady, shared) == (
        "Of the retrain's run time (the paper's RTE), the proxies that unlearn take 15 % (median; 10 to 20) and ft 60 %, in "
        "1 of 2 variants; in 1 the floor does not take the retrain's time to within 25 %."
    )
    assert about_time(shared) == (
        "Run times cannot be compared: in no variant did the floor, the same work as the retrain, take the retrain's "
        "time to within 25 %."
    )
    assert "take 20 % and ft" in about_time(one(made, eta=0.0)), "a proxy that does nothing takes no time"
    assert about_time(made.variant(made.cell())).endswith("no variant with a steady clock has both in every seed.")


def test_what_is_missing_is_said(made):
    file = Path("cifar10/r50/class_mlp1_raw.json")
    problems = (TreeProblem(file, "mlp1.0[1].ft", "missing"), TreeProblem(Path("a/b/c.json"), "", "not valid JSON"))
    partial = replace(made.variant(made.cell(ft=made.method("ft")), scenario="class"), problems=problems[:1])
    sentences = summary(Tree((partial, one(made)), problems), ())[2:]
    assert sentences[0].startswith("2 variants (1 class and 1 subclass) of cifar10 (r50) with mlp1, 1 to 2 seeds each;")
    assert sentences[1] == "Not every variant has every method: lda-2c in 1, dir-2c in 1 and ga in 1 of 2."
    assert sentences[-1] == (
        "The tree has 2 problems in 2 files, which leave 1 of 2 variants incomplete. The first: "
        "cifar10/r50/class_mlp1_raw.json: mlp1.0[1].ft: missing."
    )


def test_a_tree_without_comparisons_or_variants(made):
    sentences = summary(made.tree(made.variant(made.cell())), ())
    assert (
        "At the last epoch, whatever it costs, on KL_f, no proxy can be compared with a baseline: no variant has both "
        "in every seed." in sentences
    )
    assert "No proxy can be compared with the floor: no variant has both in every seed." in sentences
    problem = TreeProblem(Path("a/b/c.json"), "", "not valid JSON")
    assert summary(Tree((), (problem,)), ()) == (
        "No variant could be read.",
        "The tree has 1 problem in 1 file, which leaves 0 of 0 variants incomplete. The first: "
        "a/b/c.json: not valid JSON.",
    )


def test_over_floor_needs_a_floor(made):
    v = one(made)
    assert over_floor(v) == 2.0
    without = tuple({name: row for name, row in entry.items() if name != "floor"} for entry in v.entries)
    assert over_floor(replace(v, entries=without)) is None


def test_counted():
    assert [counted(n, "proxy", "proxies") for n in (0, 1, 2)] == ["0 proxies", "1 proxy", "2 proxies"]
    assert counted(2, "seed") == "2 seeds"
