"""What a results tree says in a few sentences: counts, medians and names that are in the numbers, and no judgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tracking.auto_front import AUTO_BUDGETS, auto_places
from tracking.claims import Claim, Kind, Verdict, can_fail, identities
from tracking.claims.judging import unlearning
from tracking.entries import CLOCK_TOLERANCE, clock_is_steady, mean_over_seeds, ratio
from tracking.front import BUDGETS, KL_F, KL_T, SHORT, Place, headline_budget, percent, places
from tracking.tables.distillation import idle_everywhere
from tracking.tables.table import counted, listed, two_digits, whole
from tracking.tree import Tree, TreeVariant
from unlearn_core import methods
from unlearn_core.grid import ARCHITECTURES, Scenario

NAMED = 3
"""Methods that it names."""
ROWS: Mapping[str, tuple[str, str]] = {KL_F: ("forgotten rows", "KL_f"), KL_T: ("test set", "KL_t")}


@dataclass(frozen=True)
class Closest:
    """The least mean KL over seeds, and who has it: more than one if they tie."""

    names: tuple[str, ...]
    kl: float
    among: int
    """How many were compared."""

    def __str__(self) -> str:
        if not self.names[1:]:
            return self.names[0]
        return f"all {self.among} alike" if len(self.names) == self.among else f"{listed(self.names)} alike"


def closest(variant: TreeVariant, rivals: Iterable[str], measure: str) -> Closest | None:
    """Among the methods that the benchmark ranks: in every seed, finite, and not the base under another name."""
    means = {
        name: kl
        for name in rivals
        if variant.has(name) and not idle_everywhere(variant, name)
        if (kl := mean_over_seeds(variant.entries, name, "last", measure)) is not None
    }
    if not means:
        return None
    least = min(means.values())
    return Closest(tuple(name for name, kl in means.items() if kl == least), least, len(means))


def over_floor(variant: TreeVariant) -> float | None:
    """KL_f of the closest proxy over the floor's."""
    proxy = closest(variant, methods.proxies(), KL_F)
    return ratio(proxy.kl if proxy else None, mean_over_seeds(variant.entries, "floor", "last", KL_F))


def headline(tree: Tree) -> tuple[str, ...]:
    """What ``auto`` reaches; if it can be compared with ``short`` nowhere, who is closest, which takes a retrain to know."""
    return told if (told := _auto(tree)) else _front(tree)


def _auto(tree: Tree) -> tuple[str, ...]:
    """Beside a retrain cut short of the same cost, at every cost at which it can be compared."""
    found = [place for v in tree.variants if v.has(SHORT, "retrain") for place in auto_places(v)]
    told: list[str] = []
    costs: list[float] = []
    for measure, (rows, kl) in ROWS.items():
        ratios = {
            budget: [r for p in found if (p.budget, p.measure) == (budget, measure) and (r := p.over_short) is not None]
            for budget in AUTO_BUDGETS
        }
        costs = [budget for budget in AUTO_BUDGETS if ratios[budget]]
        below = listed([f"{sum(r <= 1 for r in ratios[budget])} of {len(ratios[budget])}" for budget in costs])
        middle = listed([f"{median(ratios[budget]):.2g}" for budget in costs])
        several = " in the median" if any(len(ratios[budget]) > 1 for budget in costs) else ""
        told.append(f"in {below} variants on the {rows} ({middle} times its {kl}{several})")
    if not costs:
        return ()
    return (
        f"auto chooses a method without a retrain. At {listed([f'{100 * budget:g}' for budget in costs])} % of a retrain's "
        f"cost it is at least as close to one as a retrain cut short at that cost ({SHORT}) {listed(told)}.",
    )


def _front(tree: Tree) -> tuple[str, ...]:
    """Who is closest at 1 % of a retrain's cost (the next cost at which anyone is there), and beside ``short``."""
    found = [place for v in tree.variants for place in places(v)]
    budget = headline_budget(found)
    if budget is None:
        return (f"No method is done at {percent(BUDGETS[-1])} of a retrain's cost or below.",) if found else ()
    there = {measure: [p for p in found if (p.budget, p.measure) == (budget, measure)] for measure in ROWS}
    winners = "; ".join(f"on the {rows} ({kl}) {_winners(there[measure])}" for measure, (rows, kl) in ROWS.items())
    first = f"Closest at {percent(budget)} of a retrain's cost: {winners}."
    beside = [said for measure, rows in ROWS.items() if (said := _beside_short(there[measure], *rows))]
    if not beside:
        return first, f"Nothing can be compared with {SHORT}, a retrain cut short: it has no record at that cost."
    return first, f"That is closer than a retrain simply cut short at the same cost ({SHORT}) {listed(beside)}."


def _winners(found: Sequence[Place]) -> str:
    names = Counter(place.method for place in found if place.method).most_common()
    if not names:
        return "nobody"
    if not names[1:] and names[0][1] == len(found):
        return names[0][0] + (" in every variant" if found[1:] else "")
    said = [f"{name} in {count}" for name, count in names[:NAMED]]
    said += [f"others in {rest}"] if (rest := sum(count for _, count in names[NAMED:])) else []
    return f"{listed(said)} of {counted(len(found), 'variant')}"


def _beside_short(found: Sequence[Place], rows: str, kl: str) -> str:
    ratios = [place.ratio for place in found if place.ratio is not None]
    if not ratios:
        return ""
    below = sum(share < 1 for share in ratios)
    middle = f"{median(ratios):.2g} times its {kl}" + (" in the median" if ratios[1:] else "")
    return f"in {below} of {counted(len(ratios), 'variant')} on the {rows} ({middle})"


def summary(tree: Tree, claims: Sequence[Claim]) -> tuple[str, ...]:
    """Who is closest at a small cost; how much there is, who comes closest at all, how far from a second retrain, at what
    cost; which claims hold."""
    measured = (
        (
            _closest_on(tree, "At the last epoch, whatever it costs, on KL_f", KL_F),
            _closest_on(tree, "On KL_t", KL_T),
            _floor(tree),
            _run_time(tree),
        )
        if tree.variants
        else ()
    )
    sentences = (
        *_auto(tree),
        *_front(tree),
        _extent(tree),
        _gaps(tree),
        *measured,
        *_verdicts(claims),
        _problems(tree),
    )
    return tuple(sentence for sentence in sentences if sentence)


def _extent(tree: Tree) -> str:
    if not tree.variants:
        return "No variant could be read."
    scenarios = Counter(v.variant.scenario for v in tree.variants)
    kinds = listed([f"{scenarios[s]} {s}" for s in Scenario if s in scenarios])
    datasets = listed(list(dict.fromkeys(f"{v.variant.dataset} ({v.backbone})" for v in tree.variants)))
    present = {v.variant.arch for v in tree.variants}
    archs = listed([arch for arch in ARCHITECTURES if arch in present])
    counts = {len(v.entries) for v in tree.variants}
    seeds = counted(max(counts), "seed") if len(counts) == 1 else f"{min(counts)} to {counted(max(counts), 'seed')}"
    present_methods = {name for v in tree.variants for name in v.methods}
    families = {"proxy": methods.proxies(), "edit": methods.edits(), "baseline": methods.baselines()}
    of_each = {family: len(present_methods & {*names}) for family, names in families.items()}
    shares = listed([counted(n, family, "proxies" if family == "proxy" else "") for family, n in of_each.items() if n])
    return (
        f"{counted(len(tree.variants), 'variant')} ({kinds}) of {datasets} with {archs}, {seeds} each; "
        f"{counted(len(present_methods), 'method')}: {shares}."
    )


def _gaps(tree: Tree) -> str:
    """Variants may have been run with different methods: that is no problem of the tree, but a reader should know."""
    having = Counter(name for v in tree.variants for name in v.methods)
    partly = [f"{name} in {having[name]}" for name in methods.names() if 0 < having[name] < len(tree.variants)]
    return f"Not every variant has every method: {listed(partly)} of {len(tree.variants)}." if partly else ""


def _closest_on(tree: Tree, subject: str, measure: str) -> str:
    pairs = [(closest(v, methods.proxies(), measure), closest(v, methods.baselines(), measure)) for v in tree.variants]
    compared = [(proxy, baseline) for proxy, baseline in pairs if proxy and baseline]
    if not compared:
        return f"{subject}, no proxy can be compared with a baseline: no variant has both in every seed."
    ours = [proxy for proxy, baseline in compared if proxy.kl < baseline.kl]
    theirs = [baseline for proxy, baseline in compared if baseline.kl < proxy.kl]
    text = (
        f"{subject}, a proxy comes closest to the retrain in {len(ours)} of {counted(len(compared), 'variant')}"
        f"{_names(ours)} and a baseline in {len(theirs)}{_names(theirs)}"
    )
    if equal := len(compared) - len(ours) - len(theirs):
        text += f", both alike in {equal}"
    ratios = [share for proxy, baseline in compared if (share := ratio(proxy.kl, baseline.kl)) is not None]
    if ratios:
        text += (
            f"; the closest proxy's mean is {two_digits(median(ratios))} times the closest baseline's{_range(ratios)}"
        )
    return text + "."


def _names(winners: Sequence[Closest]) -> str:
    """Who, and in how many. Proxies with the same target, as on most forgotten classes, have the same KL to the bit."""
    if not winners:
        return ""
    counts = Counter(map(str, winners))  # most common first, in the order of the variants if equal
    return f" ({', '.join(f'{who} in {count}' for who, count in counts.most_common())})"


def _floor(tree: Tree) -> str:
    found = [(v.variant.scenario, times) for v in tree.variants if (times := over_floor(v)) is not None]
    if not found:
        return "No proxy can be compared with the floor: no variant has both in every seed."
    by_scenario = {s: [times for scenario, times in found if scenario is s] for s in Scenario}
    medians = listed([f"{two_digits(median(times))} for {s}" for s, times in by_scenario.items() if times])
    below = sum(times < 1 for _, times in found)
    return (
        f"KL_f of the closest proxy at its last epoch over the floor's: {medians} (median over variants); below 1 in "
        f"{below} of {counted(len(found), 'variant')}. The floor, a second retrain from other initial weights, tells how "
        "far two retrains lie apart; it is not a lower bound."
    )


def _run_time(tree: Tree) -> str:
    within = f"take the retrain's time to within {100 * CLOCK_TOLERANCE:.0f} %"
    steady = [v for v in tree.variants if clock_is_steady(v.entries)]
    if not steady:
        return f"Run times cannot be compared: in no variant did the floor, the same work as the retrain, {within}."
    timed = [(ours, ft) for v in steady if (ours := _proxy_times(v)) and (ft := _percent(v, "ft")) is not None]
    if not timed:
        return "Run times of proxies and ft cannot be compared: no variant with a steady clock has both in every seed."
    proxies, fine_tuning = [time for ours, _ in timed for time in ours], [ft for _, ft in timed]
    unsteady = len(tree.variants) - len(steady)
    return (
        f"Of the retrain's run time (the paper's RTE), the proxies that unlearn take {whole(median(proxies))} %"
        f"{_range(proxies)} and ft {whole(median(fine_tuning))} %{_range(fine_tuning)}, in {len(timed)} of "
        f"{counted(len(tree.variants), 'variant')}"
        + (f"; in {unsteady} the floor does not {within}." if unsteady else ".")
    )


def _proxy_times(variant: TreeVariant) -> list[float]:
    proxies = unlearning(variant, [proxy for proxy in methods.proxies() if variant.has(proxy)])
    return [time for proxy in proxies if (time := _percent(variant, proxy)) is not None]


def _percent(variant: TreeVariant, method: str) -> float | None:
    share = mean_over_seeds(variant.entries, method, "last", "rte")
    return None if share is None else 100 * share


def _range(values: Sequence[float]) -> str:
    if not values[1:]:
        return ""
    return f" (median; {two_digits(min(values))} to {two_digits(max(values))})"


def _verdicts(claims: Sequence[Claim]) -> Iterator[str]:
    """Identities are not counted among what holds: they could not have failed."""
    for kind, owner in ((Kind.OWN, "this project"), (Kind.PAPER, "the paper")):
        judged = Counter(claim.verdict for claim in can_fail(claims) if claim.kind is kind)
        if judged:
            holding = counted(judged[Verdict.HOLDS], "holds", "hold")
            failing = counted(judged[Verdict.FAILS], "does not hold", "do not hold")
            yield (
                f"Of {counted(judged.total(), 'claim')} of {owner}, {holding} on these results, {failing} and "
                f"{judged[Verdict.OPEN]} cannot be judged."
            )
    if checked := identities(claims):
        violated = [claim.name for claim in checked if claim.verdict is Verdict.FAILS]
        outcome = f"violated: {listed(violated)}" if violated else "no violation"
        yield f"Checked identities, true by algebra: {len(checked)}; {outcome}."


def _problems(tree: Tree) -> str:
    if not tree.problems:
        return "No problem was found in the tree."
    files = len({problem.file for problem in tree.problems})
    incomplete = sum(not v.complete for v in tree.variants)
    return (
        f"The tree has {counted(len(tree.problems), 'problem')} in {counted(files, 'file')}, which "
        f"{'leaves' if len(tree.problems) == 1 else 'leave'} {incomplete} of {counted(len(tree.variants), 'variant')} "
        f"incomplete. The first: {tree.problems[0]}."
    )
