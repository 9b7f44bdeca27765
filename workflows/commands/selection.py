"""Which data, variants and cells the options of ``run``, ``grid`` and ``plan`` ask for."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.step import Step
from unlearn_core import methods
from unlearn_core.errors import BadInput
from unlearn_core.grid import PAPER_DATASETS, SEEDS, Scenario, Variant
from workflows.commands.options import settings_of
from workflows.commands.values import chosen
from workflows.grid import cell_step, choose_variants
from workflows.sources import DataOptions, Source, open_sources


@dataclass(frozen=True)
class Part:
    """The chosen variants on one source."""

    source: Source
    variants: Sequence[Variant]


def data_options(arguments: argparse.Namespace, datasets: Sequence[str]) -> DataOptions:
    """What the options say about data."""
    names = {field.name for field in dataclasses.fields(DataOptions)} - {"datasets", "features"}
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    file = getattr(arguments, "features", None)
    if file is not None and getattr(arguments, "dataset", None):
        raise BadInput("--features is a data set of its own; leave --dataset out")
    return DataOptions(datasets=tuple(datasets), features=file, **given)


def select_parts(arguments: argparse.Namespace, planning: bool = False) -> list[Part]:
    """The part of the grid that ``add_selection`` asked for, by source."""
    options = data_options(arguments, chosen(arguments.dataset, PAPER_DATASETS))
    archs = None if arguments.arch is None else chosen(arguments.arch, ())
    scenarios = [Scenario(name) for name in chosen(arguments.scenario, tuple(Scenario))]
    keys = None if arguments.key is None else chosen(arguments.key, ())
    parts = []
    for source in open_sources(options, archs, planning):
        wanted = [arch for arch in archs or source.archs if arch in source.archs]
        parts.append(Part(source, choose_variants(source, wanted, scenarios, keys)))
    return [part for part in parts if part.variants]


def cells_of(parts: Sequence[Part], arguments: argparse.Namespace) -> list[Step]:
    """The last step of every cell: a variant with a seed."""
    settings, wanted = settings_of(arguments), chosen(arguments.methods, methods.paper_methods())
    return [
        cell_step(part.source, variant, seed, wanted, settings)
        for part in parts
        for variant in part.variants
        for seed in chosen(arguments.seeds, SEEDS)
    ]
