"""Bad records, data, answers of a black box, and options: each is refused in a line. All runs in this process."""

from __future__ import annotations

import pytest

from tests.workflows.fuzz.refusals import assert_refused
from tests.workflows.fuzz.requests import black_boxes, data_sets, options, requests

TABLES = {"requests": requests, "data sets": data_sets, "black boxes": black_boxes, "options": options}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.filterwarnings("ignore")
def test_every_bad_request_is_refused_in_a_line_and_leaves_nothing(folder, table):
    assert_refused(folder, TABLES[table]())
