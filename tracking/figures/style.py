"""One look for all figures: told apart without colour, the same bytes from the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracking.tables.table import counted
from unlearn_core import methods

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

PNG_DPI = 150
RC: Mapping[RcKeyType, Any] = MappingProxyType(
    {
        "font.family": "sans-serif",
        # the first comes with matplotlib, so that every machine lays out alike; a browser may have the others only
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "axes.labelsize": 9.0,
        "legend.fontsize": 7.5,
        "legend.frameon": False,
        "xtick.labelsize": 8.0,
        "ytick.labelsize": 8.0,
        "svg.fonttype": "none",  # text stays text: to search, to select, to read aloud
        "svg.hashsalt": "unlearn-grid",
    }
)


@dataclass(frozen=True)
class FigureFile:
    """A figure on disk, with what a page says about it."""

    name: str
    title: str
    caption: str
    svg: Path
    png: Path


def first_figure(figures: Sequence[FigureFile]) -> FigureFile | None:
    """What a reader should see first: what ``auto`` reaches, or else a variant's methods over cost."""
    first = (figure for prefix in ("auto_front", "front_") for figure in figures if figure.name.startswith(prefix))
    return next(first, None)


@dataclass(frozen=True)
class Look:
    """How one method is drawn, in every figure."""

    color: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str
    width: float
    filled: bool

    def plotted(self) -> dict[str, Any]:
        """The keywords of ``Axes.plot``."""
        return {
            "color": self.color,
            "linestyle": self.line,
            "linewidth": self.width,
            "marker": self.marker,
            "markersize": 4.0,
            "markerfacecolor": self.color if self.filled else "white",
            "markeredgewidth": 0.9,
        }


def _proxy(color: str, marker: str, line: str = "-", width: float = 1.5) -> Look:
    return Look(color, line, marker, width, filled=True)


def _baseline(color: str, marker: str, *dashes: float) -> Look:
    return Look(color, (0, dashes), marker, 1.0, filled=False)


LOOKS: Mapping[str, Look] = MappingProxyType(
    {  # the paper's families: naive, mixture, doubled; QDA dashed; baselines thin and hollow
        "lda": _proxy("#3b82c4", "o"),
        "qda": _proxy("#3b82c4", "s", "--"),
        "lda-mix": _proxy("#e08a1e", "D"),
        "qda-mix": _proxy("#e08a1e", "^", "--"),
        "lda-2c": _proxy("#00473e", "v", width=2.4),
        "dir": _proxy("#a678c8", "<"),
        "dir-2c": _proxy("#5b2a86", ">"),
        "probe": _proxy("#0f9d8a", "H", width=2.4),
        "fresh": _proxy("#1b2a8a", "8", width=2.4),
        "crossfit": _proxy("#7a9e00", "P"),
        "newton": _proxy("#c1121f", "*", width=2.4),
        "newton-crossfit": _proxy("#8f2d56", "X", width=2.4),
        "flow": _proxy("#00a6fb", "h", width=2.4),
        "truncate": _proxy("#5c5f97", "p"),
        "ssd": _baseline("#00798c", "o", 4, 1.5, 1, 1.5),
        "ft": _baseline("#444444", "P", 5, 2),
        "ga": _baseline("#b3261e", "X", 1, 1.5),
        "ga-ft": _baseline("#d9706a", "h", 5, 1.5, 1, 1.5),
        "rl-ft": _baseline("#7a5c2e", "*", 3, 1.5),
        "scrub": _baseline("#c2258f", "d", 1, 1),
        "salun": _baseline("#6f7d16", "p", 7, 2, 1, 2, 1, 2),
        "l1-sparse": _baseline("#4f772d", "^", 4, 1.5),
        "neggrad+": _baseline("#9a6324", "v", 2, 1),
        "bad-teacher": _baseline("#5c5f97", "<", 6, 1.5, 1, 1.5),
        "short": Look("#000000", "-", ".", 2.2, filled=True),
        "short-small": Look("#000000", (0, (6, 1)), "D", 1.4, filled=False),
        "short-warm": Look("#000000", (0, (4, 1.5)), "s", 1.4, filled=False),
        "short-young": Look("#2a9d3a", "-", "$Y$", 2.2, filled=True),
        "short-hard": Look("#d1008f", "-", "d", 2.2, filled=True),
        "short-hard-warm": Look("#d1008f", (0, (4, 1.5)), "8", 2.0, filled=False),
        "short-hard-group": Look("#d1008f", (0, (2, 1.5)), ">", 2.0, filled=False),
        "short-hard-linear": Look("#d1008f", (0, (6, 1)), "H", 2.0, filled=False),
        "short-hard-slow": Look("#d1008f", (0, (6, 1)), "|", 2.0, filled=True),
        "short-hard-near": Look("#d1008f", (0, (3, 1, 1, 1)), "_", 2.0, filled=True),
        "short-hard-base": Look("#d1008f", (0, (1, 1)), "$B$", 2.0, filled=True),
        "newton-hard": Look("#c1121f", (0, (4, 1.5)), "$N$", 2.4, filled=True),
        "base": Look("#000000", (0, (1, 3)), "", 1.0, filled=False),
        "floor": Look("#8c8c8c", "-", "", 3.0, filled=False),
    }
)

OTHER_MARKERS = ("1", "2", "3", "4", "+", "x")  # no known method has one of these
OTHER_COLOURS = ("#00798c", "#8f2d56", "#4f772d", "#9a6324", "#5c5f97", "#c1121f")


def look_of(row: str) -> Look:
    """The look of a method or reference; a method that is not in ``LOOKS`` gets one by its place in the table of methods."""
    if row in LOOKS:
        return LOOKS[row]
    place = [name for name in methods.names() if name not in LOOKS].index(row)
    color, marker = OTHER_COLOURS[place % len(OTHER_COLOURS)], OTHER_MARKERS[place % len(OTHER_MARKERS)]
    return _proxy(color, marker) if row in methods.proxies() else _baseline(color, marker, 4, 1.5, 1, 1.5)


def with_seeds(name: str, count: int, of: int) -> str:
    """A name as it is in a legend: how many seeds it has if others have more."""
    return name if count == of else f"{name} ({count} of {counted(of, 'seed')})"


@contextmanager
def styled() -> Iterator[None]:
    """Draw under this project's settings, whatever the user's own are."""
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(RC)
        yield


def height_beside_legend(lines: int) -> float:
    """Inches of a figure with so many lines of legend beside its axes."""
    return max(4.4, 0.2 * (lines + 2))


def new_figure(width: float, height: float, by_hand: bool = False) -> Figure:
    """An empty figure of so many inches that no window system knows of.

    Args:
        by_hand: its caller sets the margins. Otherwise they are found by drawing it, which costs more than the figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=None if by_hand else "constrained")
    FigureCanvasAgg(figure)
    return figure


def log_axis(axis: Axis) -> None:
    """Plain numbers, and ticks at 1, 2 and 5: drawing a tick takes as long as a curve, and a power of ten still longer."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    axis.set_minor_formatter(NullFormatter())


def save(
    figure: Figure, directory: Path, name: str, title: str, caption: str, kinds: Sequence[str] = ("svg", "png")
) -> FigureFile:
    """Write ``name.svg`` and ``name.png``, or only one of them."""
    directory.mkdir(parents=True, exist_ok=True)
    file = FigureFile(name, title, caption, directory / f"{name}.svg", directory / f"{name}.png")
    if "svg" in kinds:
        figure.savefig(file.svg, metadata={"Date": None})
    if "png" in kinds:
        figure.savefig(file.png, dpi=PNG_DPI)
    return file
