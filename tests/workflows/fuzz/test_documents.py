"""Bad ledgers, certificates, results and grids: each is refused in a line. All runs in this process."""

from __future__ import annotations

import pytest

from tests.workflows.fuzz import grids, models, requests
from tests.workflows.fuzz.documents import certificates, ledgers, reports
from tests.workflows.fuzz.refusals import assert_refused

LEAST = 2500
TABLES = {
    "ledgers": ledgers,
    "certificates": certificates,
    "reports": reports,
    "grids": lambda _: grids.grids(),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.filterwarnings("ignore")
def test_every_bad_document_is_refused_in_a_line_and_leaves_nothing(folder, table):
    assert_refused(folder, TABLES[table](folder))


def test_there_are_as_many_as_is_said(folder):
    others = (requests.requests, requests.data_sets, requests.black_boxes, requests.options)
    others += (models.weights, models.classifiers, models.many_models)
    cases = {case for table in TABLES.values() for case in table(folder)} | {
        case for table in others for case in table()
    }
    commands = {
        command: sum(case.arguments[:1] == (command,) for case in cases)
        for command in ("forget", "verify", "report", "plan", "grid")
    }
    assert len(cases) >= LEAST
    assert min(commands.values()) >= 100, commands
