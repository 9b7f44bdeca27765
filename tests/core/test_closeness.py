"""Requests told apart, at the level that is promised; closeness estimated, where the truth can be drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from unlearn_core.audit.divergence import kl_rows, log_probabilities
from unlearn_core.audit.stein import min_queries
from unlearn_core.closeness import (
    HeldoutPosteriors,
    _stand_in,
    _Tilted,
    class_weights,
    estimate_network,
    estimate_target,
)
from unlearn_core.errors import BadInput
from unlearn_core.request_kind import (
    ENOUGH,
    Comparison,
    HeldoutView,
    RequestKind,
    Verdict,
    Witnesses,
    _among,
    _compare_ranks,
    _holm,
    kind_of_request,
    view_heldout,
)

N_CLASSES, DIM = 4, 24
RNG = np.random.default_rng(7)
CENTRES = 1.5 * RNG.normal(size=(N_CLASSES, 2, DIM))  # two subclasses in every class
COUNTS = np.full(N_CLASSES, 10_000)


def draw(n: int, rng: np.random.Generator, classes=None) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(N_CLASSES, size=n) if classes is None else rng.choice(classes, n)
    return CENTRES[labels, rng.integers(2, size=n)] + rng.normal(size=(n, DIM)), labels


def posteriors(x: np.ndarray) -> np.ndarray:
    """What a plausible model says: nearer to a class's subclasses, likelier."""
    distances = ((x[:, None, None] - CENTRES) ** 2).sum(-1)
    return log_probabilities(-0.1 * distances.min(axis=2))


HELDOUT_X, HELDOUT_Y = draw(4000, RNG)
VIEW: HeldoutView = view_heldout(np.stack([posteriors(HELDOUT_X)] * 5), HELDOUT_Y, HELDOUT_X)


def seen(x: np.ndarray, labels: np.ndarray, view: HeldoutView = VIEW) -> Witnesses:
    return view.see(posteriors(x), labels, lambda: x)


def judge(x: np.ndarray, labels: np.ndarray, seed: int = 0) -> Verdict:
    return kind_of_request(seen(x, labels), COUNTS, VIEW.witnesses, 5, seed)


@pytest.mark.parametrize("n", [1, 3, 40, 300])
def test_of_random_requests_about_a_twentieth_is_rejected(n):
    """By all tests together no more than the level; by each as often as its p-value says."""
    rng, verdicts = np.random.default_rng(n), []
    for seed in range(120):
        (x, labels), (held_x, held_y) = draw(n, rng), draw(1200, rng)
        view = view_heldout(posteriors(held_x)[None], held_y, held_x)
        verdicts.append(kind_of_request(seen(x, labels, view), COUNTS, view.witnesses, 5, seed))
    assert np.mean([verdict.kind is RequestKind.GROUP for verdict in verdicts]) <= 0.05 + 3 * 0.02
    by_name: dict[str, list[float]] = {}
    for verdict in verdicts:
        if not verdict.within_classes:
            for test in verdict.tests:
                by_name.setdefault(test.name, []).append(test.p_value)
    for name, found in by_name.items():
        if n > 3 or name in ("losses", "entropies", "places"):  # few labels have few values: conservative
            assert np.mean(np.array(found) <= 0.3) == pytest.approx(0.3, abs=4 * 0.042), name


def test_a_subclass_is_rejected_though_labels_and_losses_look_the_same():
    """Models that say the same of every row: only places are left to tell."""
    rng = np.random.default_rng(0)
    view = view_heldout(np.full((5, len(HELDOUT_X), N_CLASSES), -np.log(N_CLASSES)), HELDOUT_Y, HELDOUT_X)
    for n in (40, 100, 1000):
        labels, unsure = np.zeros(n, dtype=np.int64), np.full((n, N_CLASSES), -np.log(N_CLASSES))
        x = CENTRES[0, 1] + rng.normal(size=(n, DIM))
        verdict = kind_of_request(view.see(unsure, labels, lambda x=x: x), COUNTS, view.witnesses, 5)
        assert verdict.kind is RequestKind.GROUP
        assert verdict.within_classes
        assert "places" in verdict.why


def test_what_losses_tell_is_not_looked_for_in_features():
    x, labels = draw(60, np.random.default_rng(2))
    wrong = (labels + 1) % N_CLASSES

    def features() -> np.ndarray:
        raise AssertionError("the features were asked for")

    verdict = kind_of_request(VIEW.see(posteriors(x), wrong, features), COUNTS, VIEW.witnesses, 5)
    assert verdict.kind is RequestKind.GROUP
    assert [test.name for test in verdict.tests] == ["class shares", "losses"]


def test_records_that_vouch_for_each_other_are_rejected():
    """Pairs of near-duplicates, drawn at random: each row looks like any other. They weigh double, which places may show;
    where those do not, companions are asked, and always do."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, labels = draw(10, rng)
        found.append(judge(np.vstack([x, x + 0.1 * rng.normal(size=x.shape)]), np.tile(labels, 2)))
    assert {verdict.kind for verdict in found} == {RequestKind.GROUP}
    asked = [verdict for verdict in found if "companions" in {test.name for test in verdict.tests}]
    assert len(asked) >= 3
    assert all("companions" in verdict.why for verdict in asked)


def test_odd_records_are_rejected():
    rng = np.random.default_rng(2)
    x, labels = draw(60, rng)
    flipped = judge(x, (labels + 1) % N_CLASSES)
    assert flipped.kind is RequestKind.GROUP
    assert "losses" in flipped.why
    assert judge(4 * x, labels).kind is RequestKind.GROUP


def test_random_rows_of_some_classes_are_compared_within_these_classes():
    rng = np.random.default_rng(3)
    found = [judge(*draw(200, rng, classes=(0, 2)), seed) for seed in range(40)]
    assert all(verdict.within_classes for verdict in found)
    assert np.mean([verdict.kind is RequestKind.EXCHANGEABLE for verdict in found]) >= 0.85
    assert "of the same classes" in found[0].why


def test_whole_classes_crowded_classes_and_missing_held_out_rows():
    rng = np.random.default_rng(4)
    x, labels = draw(400, rng)
    records = seen(x, labels)
    whole = records[np.flatnonzero(labels < 2)]
    counts = np.bincount(labels)
    assert kind_of_request(whole, counts, VIEW.witnesses, 5).kind is RequestKind.WHOLE_CLASS
    nearly = whole[np.arange(1, len(whole))]
    crowded = kind_of_request(nearly, counts, VIEW.witnesses, 5)
    assert crowded.kind is RequestKind.GROUP
    assert "100% of a class" in crowded.why
    few = VIEW.witnesses[np.arange(50)]
    assert [kind_of_request(records, COUNTS, rows, 5).kind for rows in (None, few)] == [RequestKind.UNKNOWN] * 2
    without = VIEW.witnesses[np.flatnonzero(VIEW.labels != 3)]
    assert kind_of_request(records, COUNTS, without, 5).kind is RequestKind.UNKNOWN
    with pytest.raises(BadInput, match="1 held-out rows"):
        view_heldout(posteriors(x[:1])[None], labels[:1], x[:1])


def test_one_record_is_judged_by_its_rank_among_held_out_rows():
    """And the verdict says how little that is."""
    x, labels = draw(1, np.random.default_rng(5))
    verdict = judge(x, labels)
    record = seen(x, labels)
    below = np.mean(VIEW.losses < record.losses)
    by_name = {test.name: test.p_value for test in verdict.tests}
    assert by_name["losses"] == pytest.approx(2 * min(below, 1 - below), abs=0.01)
    farther = np.mean((VIEW.places**2).sum(1) >= (record.places**2).sum())
    # ten rows that lie as far end the test: of a p-value p it knows p to within p * sqrt((1 - p) / 10), three of which are
    assert by_name["places"] == pytest.approx(farther, abs=3 * farther * np.sqrt((1 - farther) / ENOUGH))
    assert "shows little" in verdict.why
    assert judge(x + 40, labels).kind is RequestKind.GROUP


def test_ranks_are_compared_as_scipy_does_and_never_more_boldly():
    """The statistic is Kolmogorov and Smirnov's; the p-value bounds the two-sided one, and is it where that is small."""
    rng = np.random.default_rng(8)
    for n, shift in ((1, 0.0), (7, 1.0), (60, 0.5), (400, 0.25), (1000, 0.0)):
        records, heldout = rng.normal(shift, size=n).round(2), rng.normal(size=2500).round(2)
        ours = _compare_ranks("losses", records, heldout)
        statistic, p_value = np.array(stats.ks_2samp(records, heldout, method="asymp"), dtype=np.float64)
        assert ours.statistic == pytest.approx(statistic, abs=1e-12)
        assert ours.p_value >= p_value * (1 - 1e-9)
        if p_value < 0.05:
            assert ours.p_value == pytest.approx(p_value, rel=0.1)


@pytest.mark.parametrize(("own", "p"), [(0.002, 0.998), (0.5, 0.5), (0.9, 0.1)])
def test_a_permutation_test_that_ends_early_is_right_in_the_mean(own, p):
    """Draws are uniform, so that a share 1 - own of them is as large. Its p-value is never too small in the mean."""
    rng = np.random.default_rng(9)
    found = np.array([_among("x", own, rng.random, 999).p_value for _ in range(400)])
    spread = found.std() / np.sqrt(len(found))
    assert found.mean() >= p - 3 * spread
    assert found.mean() <= p * (1 + 1 / (ENOUGH - 1)) + 3 * spread  # the mean of 10 / draws is p * 10 / 9 at the most


def test_a_permutation_test_that_finds_nothing_as_large_goes_to_the_end():
    assert _among("x", 2.0, np.random.default_rng(0).random, 999).p_value == pytest.approx(1e-3)


def test_the_kind_depends_on_nothing_but_what_rows_say_and_where_they_are():
    """Not on the order of held-out rows' features, a rotation of feature space or a renaming of classes."""
    rng = np.random.default_rng(6)
    x, labels = draw(30, rng)
    rotation = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    log_h, log_f = posteriors(HELDOUT_X), posteriors(x)
    turned = view_heldout(np.stack([log_h] * 5), HELDOUT_Y, HELDOUT_X @ rotation)
    names = np.array([2, 0, 3, 1])
    back = np.argsort(names)
    renamed = view_heldout(np.stack([log_h[:, back]] * 5), names[HELDOUT_Y], HELDOUT_X)
    plain = judge(x, labels).tests
    verdicts = (
        kind_of_request(turned.see(log_f, labels, lambda: x @ rotation), COUNTS, turned.witnesses, 5),
        kind_of_request(renamed.see(log_f[:, back], names[labels], lambda: x), COUNTS, renamed.witnesses, 5),
    )
    for verdict in verdicts:
        for ours, theirs in zip(plain, verdict.tests, strict=True):
            assert theirs.statistic == pytest.approx(ours.statistic, rel=1e-6)


def test_holm_by_hand():
    tests = [Comparison(str(i), 0.0, p) for i, p in enumerate((0.04, 0.01, 0.03))]
    assert [test.adjusted for test in _holm(tests)] == pytest.approx([0.06, 0.03, 0.06])
    many = stats.false_discovery_control([0.01], method="by")  # one test needs no correction, whoever makes it
    assert _holm([Comparison("only", 0.0, 0.01)])[0].adjusted == pytest.approx(float(many[0]))


def test_tests_that_were_not_made_count_in_holms_correction_as_if_they_had_said_anything():
    """Whatever the others say, a p-value is adjusted to no more than without them."""
    made = [Comparison("losses", 0.0, 0.03), Comparison("entropies", 0.0, 0.001)]
    alone = [test.adjusted for test in _holm(made, of=5)]
    assert alone == pytest.approx([0.12, 0.005])
    rng = np.random.default_rng(0)
    for _ in range(200):
        others = [Comparison(str(i), 0.0, float(p)) for i, p in enumerate(rng.uniform(size=3) ** 4)]
        whole = _holm([*made, *others])
        assert whole[1].adjusted <= alone[1] + 1e-12


def test_class_weights_give_the_shares_asked_for():
    records, heldout = np.array([0, 0, 2]), np.array([0, 1, 2, 2, 2, 1])
    weights = class_weights(records, heldout)
    assert weights.mean() == pytest.approx(1)
    assert [weights[heldout == c].sum() / weights.sum() for c in range(3)] == pytest.approx([2 / 3, 0, 1 / 3])


# Networks whose truth is known: logits are those of the rows plus a network's own smooth error. A fold model is softer.


class World:
    """Rows with logits, and networks that err independently on them; a fold model is a flatter network."""

    def __init__(self, seed: int, n: int, m: int = 1500) -> None:
        self.rng = np.random.default_rng(seed)
        truth = 2.0 * self.rng.normal(size=(n + m, N_CLASSES))
        chances = np.exp(log_probabilities(truth))
        self.labels = (chances.cumsum(1) > self.rng.random((n + m, 1))).argmax(1)
        self.truth, self.n = truth, n

    def network(self, sharpness: float = 2.0) -> np.ndarray:
        return log_probabilities(sharpness * (self.truth + 0.5 * self.rng.normal(size=self.truth.shape)))

    def remembers(self, log_net: np.ndarray, strength: float) -> np.ndarray:
        logits = log_net.copy()
        logits[np.arange(len(logits)), self.labels] += strength
        return log_probabilities(logits)


def of_world(seed: int, n: int):
    world = World(seed, n)
    base, retrain = world.network(), world.network()
    folds = np.stack([world.network(1.0) for _ in range(5)])
    own = np.arange(n) % 5
    heldout = HeldoutPosteriors(base[n:], folds[:, n:], world.labels[n:])
    return world, base, retrain[:n], folds[own, np.arange(n)], heldout


@pytest.mark.parametrize("n", [1, 10, 200, 1000])
def test_the_interval_of_the_target_covers(n):
    hits, errors = [], []
    for seed in range(60):
        _, _, retrain, q, heldout = of_world(seed, n)
        true, found = kl_rows(retrain, q).mean(), estimate_target(heldout, n)
        hits.append(found.low <= true <= found.high)
        errors.append((found.estimate - true) / found.estimate)
        assert found.low <= found.estimate <= found.high
        assert found.queries == min_queries(found.high)
    assert np.mean(hits) >= 0.8  # 0.9 less two and a half standard deviations
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(60)


@pytest.mark.parametrize("n", [10, 200, 1000])
@pytest.mark.parametrize("strength", [0.0, 4.0])
def test_the_interval_of_a_network_covers_whether_it_remembers_or_not(n, strength):
    hits = []
    for seed in range(30):
        world, _, retrain, q, heldout = of_world(seed, n)
        net = world.remembers(world.network(), strength)[:n]
        found = estimate_network(q, net, world.labels[:n], heldout)
        hits.append(found.low <= kl_rows(retrain, net).mean() <= found.high)
    assert np.mean(hits) >= 0.8


def test_of_a_linear_head_the_estimate_is_an_upper_bound():
    """Its retrains agree, and fold models that stopped early do not: what they differ by is no lower bound."""
    for seed in range(10):
        rng, world = np.random.default_rng(seed), World(seed, 200)
        base, net, retrain = (
            log_probabilities(world.truth + 0.02 * rng.normal(size=world.truth.shape)) for _ in range(3)
        )
        folds = np.stack([world.network(1.0) for _ in range(5)])
        heldout = HeldoutPosteriors(base[200:], folds[:, 200:], world.labels[200:])
        said = folds[0, :200], net[:200], world.labels[:200], heldout
        found, plain = estimate_network(*said, convex=True), estimate_network(*said)
        true = kl_rows(retrain[:200], net[:200]).mean()
        assert found.low <= true <= found.high
        assert true < plain.low


def test_a_stand_in_is_as_sure_and_as_right_as_the_network():
    rng = np.random.default_rng(3)
    for n, strength in ((7, 0.3), (200, 4.0)):
        q, net = (log_probabilities(strength * rng.normal(size=(m, N_CLASSES))) for m in (500, n))
        labels, net_labels = rng.integers(N_CLASSES, size=500), rng.integers(N_CLASSES, size=n)
        shares = rng.dirichlet(np.ones(500))
        found = _stand_in(q, labels, shares, net, net_labels)
        np.testing.assert_allclose(np.exp(found).sum(axis=1), 1)
        np.testing.assert_allclose(-shares @ found[np.arange(500), labels], -net[np.arange(n), net_labels].mean(), 1e-4)
        np.testing.assert_allclose(
            shares @ stats.entropy(np.exp(found), axis=1), stats.entropy(np.exp(net), axis=1).mean(), 1e-4
        )


def test_slopes_of_a_tilt_are_its_differences():
    rng = np.random.default_rng(4)
    q, labels = log_probabilities(rng.normal(size=(30, N_CLASSES))).T, rng.integers(N_CLASSES, size=30)
    setting, step = np.array([0.4, -0.7]), 1e-5

    def of(at: np.ndarray) -> np.ndarray:
        found = _Tilted.of(q, labels, at)
        return np.array([found.losses, found.entropies])

    differences = [(of(setting + step * axis) - of(setting - step * axis)) / (2 * step) for axis in np.eye(2)]
    slopes = _Tilted.of(q, labels, setting).slopes(q)
    np.testing.assert_allclose(slopes, np.stack(differences, axis=1), atol=1e-8)


def test_a_network_is_not_judged_by_its_teacher():
    """One that says what q says is as far from a retrain as q is, though q finds it perfect."""
    hits = []
    for seed in range(30):
        world, _, retrain, q, heldout = of_world(seed, 200)
        found = estimate_network(q, q, world.labels[:200], heldout, taught=True)
        hits.append(found.low <= kl_rows(retrain, q).mean() <= found.high)
        assert found.parts["on the records"] >= estimate_target(heldout, 200).estimate
    assert np.mean(hits) >= 0.8


def test_more_records_narrow_the_interval_and_memory_widens_the_distance():
    world, _, _, q, heldout = of_world(0, 1000)
    widths = [found.high - found.low for found in (estimate_target(heldout, n) for n in (1, 10, 100, 1000))]
    assert widths == sorted(widths, reverse=True)
    net = world.network()
    found = [
        estimate_network(q, world.remembers(net, strength)[:1000], world.labels[:1000], heldout).estimate
        for strength in (0.0, 2.0, 4.0)
    ]
    assert found == sorted(found)


def test_estimates_do_not_depend_on_names_of_classes_nor_on_the_order_of_records():
    world, _, _, q, heldout = of_world(1, 50)
    labels, net = world.labels[:50], world.network()[:50]
    plain = estimate_network(q, net, labels, heldout)
    names = np.array([3, 1, 0, 2])
    back = np.argsort(names)
    renamed = HeldoutPosteriors(heldout.base[:, back], heldout.folds[..., back], names[heldout.labels])
    even = replace(heldout, weights=np.full(len(heldout.labels), 3.0))
    order = np.random.default_rng(0).permutation(50)
    others = (
        estimate_network(q[:, back], net[:, back], names[labels], renamed),
        estimate_network(q[order], net[order], labels[order], heldout),
        estimate_network(q, net, labels, even),
    )
    for other in others:
        assert (other.estimate, other.low, other.high) == pytest.approx(
            (plain.estimate, plain.low, plain.high), rel=1e-6
        )
    targets = [estimate_target(rows, 50) for rows in (heldout, renamed, even)]
    assert len({round(found.estimate, 9) for found in targets}) == 1


def test_weights_are_a_reweighting_of_rows():
    """Weight two on some rows, zero on the others: the estimate is that of these rows alone."""
    *_, heldout = of_world(2, 10)
    chosen = np.arange(len(heldout.labels)) % 2 == 0
    alone = HeldoutPosteriors(heldout.base[chosen], heldout.folds[:, chosen], heldout.labels[chosen])
    weighted = estimate_target(replace(heldout, weights=2.0 * chosen), 10)
    assert weighted.estimate == pytest.approx(estimate_target(alone, 10).estimate)


def test_witnesses_are_rows():
    rows = VIEW.witnesses
    assert isinstance(rows[np.array([3, 1])], Witnesses)
    assert rows[np.array([3, 1])].losses.tolist() == [VIEW.losses[3], VIEW.losses[1]]
