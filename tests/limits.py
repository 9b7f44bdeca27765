"""No test runs for ever: what pytest-timeout, set in pyproject.toml, leaves open.

pytest-timeout raises in the main thread. That fails a test wherever Python runs or waits, and the next test follows; but a
lock in C code goes on waiting, and the teardown of a test that has failed is no longer watched. Both are ended here, with
their process: the run ends, and names the test in which that happened.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

SLOW = 1800  # seconds for a test that is marked slow; the longest took 300 on two cores that had work for ten
GRACE = 180  # seconds after a test's limit in which it may end what it started
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # while nothing captures it


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))


@contextmanager
def last_resort(item: pytest.Item) -> Iterator[None]:
    """End this process, and show the stack of every thread, if this part of the test outlasts the limit of the whole."""
    mark = item.get_closest_marker("timeout")
    limit = float(mark.args[0] if mark else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + GRACE, file=item.config.stash[STDERR], exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# one clock for each part: pytest stops it when a part fails


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with last_resort(item):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with last_resort(item):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with last_resort(item):
        yield
