"""Is a local Ray started? Only if the work that is left ends sooner with it, or if something was asked for that needs it."""

from __future__ import annotations

import pytest

from workflows.commands.running import RAY_START_SECONDS, ray_pays
from workflows.run import Machine


@pytest.mark.parametrize("n_workers", [1, 2, 16])
@pytest.mark.parametrize("seconds", [0.0, 1.0, 12.5, 23.0, 25.0, 1e6])
def test_ray_pays_if_start_and_shared_work_take_less_than_the_work_alone(seconds, n_workers):
    sooner = min(("here", seconds), ("ray", RAY_START_SECONDS + seconds / n_workers), key=lambda choice: choice[1])[0]
    assert ray_pays(seconds, n_workers) == (sooner == "ray")


@pytest.mark.parametrize(
    "asked", [{"local": True}, {"address": "auto"}, {"workers": 1}, {"gpus_per_worker": 0.25}], ids=str
)
def test_what_is_asked_for_wins(asked):
    assert Machine().may_be_local
    assert not Machine(**asked).may_be_local
