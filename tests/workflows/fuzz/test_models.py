"""Bad models and plans of models: each is refused in a line. All runs in this process."""

from __future__ import annotations

import pytest

from tests.workflows.fuzz.models import classifiers, many_models, weights
from tests.workflows.fuzz.refusals import assert_refused

TABLES = {"weights": weights, "classifiers": classifiers, "plans of many models": many_models}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.filterwarnings("ignore")
def test_every_bad_model_is_refused_in_a_line_and_leaves_nothing(folder, table):
    assert_refused(folder, TABLES[table]())
