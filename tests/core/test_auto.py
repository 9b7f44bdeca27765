"""The rule that chooses a proxy, and that it knows nothing but D, the request and the base network."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from unlearn_core import methods
from unlearn_core.auto import Candidate, choose_proxy
from unlearn_core.data import load_dataset
from unlearn_core.grid import Scenario, Variant
from unlearn_core.problem import Inputs, make_cells, make_problem
from unlearn_core.references import make_scorers, train_reference
from unlearn_core.run_settings import RunSettings
from unlearn_core.unlearning import Reference, run_method


def candidate(method, fit, loss, eta=1.0, admissible=True):
    return Candidate(method, admissible, eta if admissible else 0.0, fit, loss)


def test_of_the_good_fits_the_one_to_which_the_request_matters_most():
    # subclass 0 of CIFAR-10 features: the best fit hardly sees the request, a bad fit sees too much of it
    candidates = [candidate("lda", 0.064, 0.009), candidate("lda-2c", 0.075, 0.19), candidate("qda-mix", 1.8, 1.5)]
    choice = choose_proxy(candidates)
    assert choice.method == "lda-2c"
    assert "0.19 nats" in choice.reason
    assert "lda 0.009" in choice.reason


def test_a_class_that_leaves_is_unlearned_by_the_best_fit():
    candidates = [candidate("qda", 1.2, math.inf), candidate("lda", 0.7, math.inf)]
    assert choose_proxy(candidates).method == "lda"


def test_nothing_is_chosen_where_no_good_fit_is_admissible():
    none = [candidate("lda", 0.1, -0.1, admissible=False), candidate("qda", 0.2, -0.2, admissible=False)]
    assert choose_proxy(none).method is None
    assert "no proxy is admissible" in choose_proxy(none).reason
    bad = [candidate("lda", 0.1, -0.1, admissible=False), candidate("qda-mix", 1.8, 1.3)]
    assert choose_proxy(bad).method is None
    assert "qda-mix" in choose_proxy(bad).reason
    with pytest.raises(ValueError, match="no proxy"):
        choose_proxy([])


@pytest.mark.parametrize("method", methods.auto_candidates())
def test_the_choice_depends_on_neither_the_retrain_nor_the_test_set(method):
    """Another test set and another retrain: the same fit, the same eta, the same numbers to choose by."""
    digits = load_dataset("digits")
    variant = Variant("digits", "mlp1", Scenario.SUBCLASS, 2)
    other = dataclasses.replace(digits, test_x=np.flip(digits.test_x[:100], axis=1), test_y=digits.test_y[:100])

    def target(data, retrain_role):
        problem, cells = make_problem(Inputs(data), variant.label_space), make_cells(data, variant, [0])
        base = train_reference("base", problem, "mlp1", cells, epochs=5)
        retrain = train_reference(retrain_role, problem, "mlp1", cells, epochs=5)
        reference = Reference(problem, "mlp1", cells, base, retrain, make_scorers(problem, cells, retrain))
        found = run_method(method, reference, RunSettings())[0].target
        assert found is not None
        return found

    ours, theirs = target(digits, "retrain"), target(other, "floor")
    assert ours.scores != theirs.scores, "what is measured does depend on them"
    for name in ("eta_max", "admissible", "kl_net_proxy_before", "kl_net_proxy_after", "h_curve"):
        assert getattr(ours, name) == getattr(theirs, name), name
