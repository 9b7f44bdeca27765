"""Plans and grids of which an option or the data is bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.workflows.fuzz.cases import COUNTS, NUMBERS, PLACES, Case, archives


def grids() -> Iterator[Case]:
    values = {
        "--dataset": ["", ",", "x", "imagenet", "digits.csv", *PLACES[1:]],
        "--arch": ["", ",", "x", "MLP1", "mlp1;linear", "mlp3", "resnet18", "\ud800"],
        "--scenario": ["", ",", "x", "Class", "class;random", "sub"],
        "--key": ["", ",", "x", "-1", "1.5", "10", "9" * 5000, "1;2", "0x1", "\u00b2"],
        "--seeds": ["", ",", "x", "-1", "1.5", "9" * 5000, "1;2", "nan"],
        "--methods": ["", ",", "x", "LDA", "lda;qda", "all,x", "\ud800"],
        "--preset": ["", "x", "Paper"],
        "--finalizer": ["", "x", "KL"],
        "--schedule": ["", "x"],
        "--shrinkage": ["", "x"],
        "--dir-on-test": ["", "x"],
        "--ridge": [value for value in NUMBERS if value != "0"],
        "--cap": [value for value in NUMBERS[:-1] if value != "inf"],
        "--epochs": COUNTS,
        "--workers": COUNTS,
        "--resolution": COUNTS,
        "--image-size": COUNTS,
        "--mean": ["", "x", "1", "1,2", "1,2,3,4", "a,b,c", "1;2;3"],
        "--interpolation": ["", "x"],
        "--features": PLACES,
        "--no-such": ["x"],
    }
    for command, fixed in (("plan", ()), ("grid", ("--local", "--no-tracking"))):
        good = (
            command,
            "--arch",
            "linear",
            "--scenario",
            "class",
            "--key",
            "0",
            "--seeds",
            "0",
            "--methods",
            "lda",
            *fixed,
            "--out",
            "out",
        )
        for option, bad in values.items():
            start = good if option in ("--dataset", "--features") else (*good, "--dataset", "digits")
            start = tuple(part for pair in _pairs(start) if pair[0] != option for part in pair)
            yield from (Case((*start, f"{option}={value}")) for value in bad)
        for i, content in enumerate(archives()):
            if i % 10 == 0:
                yield Case((*good, "--features", "bad.npz"), "bad.npz", content)
    yield from (Case((*good, "--dataset", "digits", "--device", device)) for device in ("", "x", "cuda:99", "\ud800"))


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Options with their values."""
    group: list[str] = []
    for part in arguments:
        if part.startswith("--") and group:
            yield tuple(group)
            group = []
        group.append(part)
    yield tuple(group)
