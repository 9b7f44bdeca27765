"""All figures that come from a results tree, and the variants that get figures of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracking.figures.auto import write_auto
from tracking.figures.evolution import evolution_figure
from tracking.figures.front import write_front
from tracking.figures.heatmap import write_heat_map
from tracking.figures.queries import write_queries
from tracking.figures.shift import shift_panel, write_shift
from tracking.figures.style import FigureFile
from tracking.tree import TreeVariant, slug
from unlearn_core.grid import Scenario

PAPER_KEYS = {Scenario.CLASS: 0, Scenario.SUBCLASS: 0, Scenario.RANDOM: 500}


def representatives(variants: Sequence[TreeVariant]) -> list[TreeVariant]:
    """One variant per scenario: the one in the paper's figures, or what comes nearest to it in the tree."""
    chosen = []
    for scenario, key in PAPER_KEYS.items():
        candidates = [v for v in variants if v.variant.scenario is scenario]
        distances = [(v.dataset != "cifar10", v.arch != "mlp1", v.key != key) for v in (c.variant for c in candidates)]
        if candidates:
            chosen.append(candidates[distances.index(min(distances))])
    return chosen


def write_figures(
    directory: Path, variants: Sequence[TreeVariant], detailed: Sequence[TreeVariant] | None = None
) -> list[FigureFile]:
    """What ``auto`` reaches; KL over cost of ``detailed`` (``representatives``), the paper's main scenario first; the heat
    map of all variants; h(eta), KL over run time and N(alpha) of ``detailed``.

    What cannot be drawn from this tree is left out.
    """
    detailed = representatives(variants) if detailed is None else detailed
    panels = [panel for v in representatives(variants) if (panel := shift_panel(v))]
    ordered = sorted(detailed, key=lambda v: v.variant.scenario is not Scenario.SUBCLASS)
    figures = [*write_auto(directory, variants), *(figure for v in ordered for figure in write_front(directory, v))]
    figures += [*write_heat_map(directory, variants), *write_shift(directory, panels)]
    for v in detailed:
        figures += evolution_figure(directory, v.entries, v.name, f"evolution_{slug(v.name)}")
        figures += write_queries(directory, v.entries, v.name, f"queries_{slug(v.name)}")
    return figures
