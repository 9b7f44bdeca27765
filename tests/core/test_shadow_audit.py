"""The audit of a request: shadows are unlearned as the model was, a base is caught, and a retrain is at chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from unlearn_core import forget
from unlearn_core.data import load_dataset
from unlearn_core.errors import BadInput
from unlearn_core.forgetting import shadows
from unlearn_core.forgetting.anew import train_anew
from unlearn_core.forgetting.audit_block import audit_problem
from unlearn_core.forgetting.forget import Observer
from unlearn_core.forgetting.open_request import OpenRequest, open_request
from unlearn_core.forgetting.opening import Heldout, prepare
from unlearn_core.forgetting.plan import ForgetSettings
from unlearn_core.forgetting.shadows import AuditSettings, attack_shadows
from unlearn_core.nets.heads import HeadStack
from unlearn_core.recipes import HEAD_TRAINING, Stopping, Visit, training_recipe
from unlearn_core.references import weights_seed
from unlearn_core.training import Member, train

DIGITS = load_dataset("digits")
X, Y = DIGITS.train_x[:600], DIGITS.train_y[:600]
HELDOUT = Heldout(DIGITS.test_x, DIGITS.test_y)
ZEROS = np.flatnonzero(Y == 0)
SETTINGS = AuditSettings(shadows=16, epochs=25, rows=40)
FEW = Stopping(epochs=3, patience=2)


@pytest.fixture(scope="module")
def base() -> HeadStack:
    net = HeadStack.initialise((64, 24, 10), [torch.Generator().manual_seed(0)])
    member = Member(0, "base", torch.from_numpy(Y))
    train(net, torch.from_numpy(X), [member], training_recipe(Visit.ALL, 40), HEAD_TRAINING)
    return net


def opened(net: HeadStack, prepared: Path | None = None, layer: str | None = None) -> OpenRequest:
    return open_request(net, X, Y, ZEROS, heldout=HELDOUT, prepared=prepared, features_from=layer)


def settings(method: str) -> ForgetSettings:
    return ForgetSettings(proxy=method, seed=7, stopping=FEW)


@pytest.mark.parametrize(
    ("method", "is_prepared", "layer"),
    [
        ("lda-2c", False, None),
        ("lda-2c", False, "penultimate"),
        ("lda-2c", True, "penultimate"),
        ("short", False, None),
        ("newton", True, None),
    ],
)
def test_a_shadow_that_is_the_model_becomes_what_the_request_made_of_it(base, tmp_path, method, is_prepared, layer):
    """To the bit, with its seed: so that others go through the same, from what is prepared of them."""
    state = tmp_path / "state"
    if is_prepared:
        prepare(base, X, Y, state, heldout=HELDOUT, features_from=layer)
    request = opened(base, state if is_prepared else None, layer)
    plan = request.plan(settings(method))
    made = request.carry_out(plan).net
    again = shadows._unlearn(request, plan, method, base.select([0]), seed=7)
    assert made is not None
    assert again is not None
    for name, tensor in made.state(0).items():
        assert torch.equal(tensor, again.state(0)[name]), name
    assert not torch.equal(made.parameters()[0][0], base.parameters()[0][0]), "it was unlearned"


def test_a_network_that_forgot_nothing_is_caught_and_another_retrain_is_at_chance(base):
    request = opened(base)
    plan, how = request.plan(settings("truncate")), request.blueprint
    assert how is not None

    def retrained(_base, seed):
        """As a shadow's retrain is made, from weights and row orders of its own: perfect unlearning."""
        draws, rows = [weights_seed(seed, "floor")], plan.forget_of_all
        return train_anew(plan.subject, how, "floor", draws, [seed], rows, SETTINGS.of(how)).net

    caught, perfect = (
        attack_shadows(plan, how, SETTINGS, unlearn) for unlearn in (lambda _base, _seed: None, retrained)
    )
    assert (caught["left_alone"], perfect["left_alone"]) == (16, 0)
    assert caught["rows"] == {"forget": 40, "retain": 40, "test": 40}
    for found in (caught, perfect):
        assert audit_problem(found) is None
        _, low, high = found["results"]["floor"]["ulira"]["auc"]
        assert low <= 0.5 <= high
    ours, floor = caught["results"]["unlearned"], caught["results"]["floor"]
    assert ours == caught["results"]["base"]
    assert ours["ulira"]["auc"][1] > 0.9
    assert ours["ulira"]["tpr_at_0.01"][0] > 0.5
    assert ours["klom"]["forget"]["mean"] > floor["klom"]["forget"]["mean"] + 1
    _, low, high = perfect["results"]["unlearned"]["ulira"]["auc"]
    assert low <= 0.5 <= high
    assert perfect["results"]["base"] == caught["results"]["base"], "the same shadows"


def test_without_heldout_rows_nothing_is_said_of_them(base):
    result = forget(base, X, Y, ZEROS, "truncate", audit=AuditSettings(shadows=8, epochs=1, rows=10))
    audit = result.certificate.content["audit"]
    assert audit["method"] == "truncate"
    assert audit["results"]["unlearned"]["klom"]["test"] is None
    assert audit_problem(audit) is None


class Told(Observer):
    def planned(self, plan):
        raise AssertionError("work was done")


def test_what_cannot_be_audited_is_refused_before_any_work(base):
    module = nn.Linear(64, 10)
    audit = AuditSettings(shadows=8)
    with pytest.raises(BadInput, match="an audit needs a model that can be built anew"):
        forget(module, X, Y, ZEROS, audit=audit, observer=Told())
    with pytest.raises(BadInput, match="--finalizer none makes none"):
        forget(base, X, Y, ZEROS, finalizer="none", audit=audit, observer=Told())
    with pytest.raises(BadInput, match=r"4 shadows .* ask for 8"):
        AuditSettings(shadows=4)
