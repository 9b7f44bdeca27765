"""Identity: everything that changes a result changes the id, and nothing else does."""

from __future__ import annotations

import pytest

from tasks.step import Kind, Step, closure


def base(seed=0, **extra) -> Step:
    features = Step(Kind.FEATURES, {"dataset": "d", "fingerprint": "f"}, hints={"source": "/somewhere"})
    return Step(Kind.BASE, {"arch": "mlp1", "seed": seed, **extra}, {"features": features})


def test_equal_steps_are_one():
    assert base() == base()
    assert len({base(), base(), base(1)}) == 2


def test_hints_are_no_part_of_the_id():
    here, there = (Step(Kind.FEATURES, {"dataset": "d"}, hints={"source": place}) for place in ("/a", "/b"))
    assert here.id == there.id


@pytest.mark.parametrize(
    "other",
    [
        base(seed=1),
        base(epochs=3),
        Step(Kind.RETRAIN, base().config, base().needs),
        Step(Kind.BASE, base().config, base().needs, version=99),
        Step(Kind.BASE, base().config, {"features": Step(Kind.FEATURES, {"dataset": "e", "fingerprint": "f"})}),
        Step(Kind.BASE, base().config, {"data": base().needs["features"]}),
    ],
)
def test_kind_version_config_and_needs_are(other):
    assert other.id != base().id


def test_the_order_of_fields_is_not():
    assert Step(Kind.BASE, {"a": 1, "b": 2}).id == Step(Kind.BASE, {"b": 2, "a": 1}).id


def test_shape_joins_seeds_and_nothing_else():
    assert base(0).shape == base(1).shape
    assert base(0).shape != base(0, epochs=3).shape
    unlearn = [Step(Kind.UNLEARN, {"method": "ft", "seed": s}, {"base": base(s)}) for s in (0, 1)]
    assert unlearn[0].shape == unlearn[1].shape, "the seeds' own networks do not keep them apart"


def test_closure_has_each_step_once_and_needs_first():
    targets = [Step(Kind.AUDIT, {"seed": s, "k": k}, {"base": base(s)}) for s in (0, 1) for k in (0, 1)]
    steps = closure(targets)
    assert len(steps) == len({step.id for step in steps}) == 1 + 2 + 4
    place = {step.id: i for i, step in enumerate(steps)}
    assert all(place[needed.id] < place[step.id] for step in steps for needed in step.needs.values())
