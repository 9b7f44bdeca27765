"""Figures from the results tree."""

from tracking.figures.catalogue import write_figures
from tracking.figures.evolution import write_evolution

__all__ = ["write_evolution", "write_figures"]
