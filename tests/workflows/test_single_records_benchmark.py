"""``benchmarks.single_records`` on digits: it asks for each record by itself, and counts what it says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.single_records import chance_of_missing, main


def test_the_chance_of_missing_by_hand():
    rng, floors = np.random.default_rng(0), np.ones(10)
    assert chance_of_missing(np.full(10, 1.9), floors, rng) == 0
    assert chance_of_missing(np.full(10, 2.1), floors, rng) == 1
    one_in_ten = np.array([20.0] + [0.0] * 9)  # the mean of five is above 2 as soon as that one is among them
    assert chance_of_missing(one_in_ten, floors, rng) == pytest.approx(1 - 0.9**5, abs=0.02)


def test_each_record_is_a_request_of_its_own(capsys):
    main(["--features", "digits", "--arch", "mlp1", "--records", "4", "--epochs", "3"])
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| mlp1")]
    asked = [(line[2].strip(), line[3].strip()) for line in lines]
    assert asked[0] == ("base", "")
    assert {method for method, _ in asked[1:]} == {"newton", "newton-crossfit", "short-hard-warm"}
    assert len({line[5] for line in lines}) == 1, "the same records, whatever the method"
    assert all(float(line[4]) >= 0 for line in lines)


def test_a_seed_of_the_grid_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--features", "digits", "--seed", "42"])
    assert "is a grid's" in capsys.readouterr().err
