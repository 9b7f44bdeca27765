"""One variant from its data to its cell records, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unlearn_core.data.feature_set import FeatureSet
from unlearn_core.problem import make_cells, make_problem
from unlearn_core.records import CellRecord, MethodRecord
from unlearn_core.references import ROLES, Trained, make_scorers, reference_records, train_reference
from unlearn_core.spec import RunSettings, Variant
from unlearn_core.unlearning import Reference, run_method

StepStart = Callable[[str], None]
"""Called with the name of each step (a role or a method) before it starts."""


def run_variant(
    features: FeatureSet,
    variant: Variant,
    seeds: Sequence[int],
    methods: Sequence[str],
    settings: RunSettings,
    on_step: StepStart,
    device: str = "cpu",
) -> list[CellRecord]:
    """Train the references, run every method, and give one record per seed; the seeds train as one stack."""
    problem = make_problem(features, variant.label_space, device)
    cells = make_cells(features, variant, seeds)
    trained: dict[str, Trained] = {}
    for role in ROLES:
        on_step(role)
        trained[role] = train_reference(role, problem, variant.arch, cells, settings.training_epochs)
    scorers = make_scorers(problem, cells, trained["retrain"])
    reference = Reference(problem, cells, trained["base"], trained["retrain"], scorers)
    runs: dict[str, list[MethodRecord]] = {}
    for method in methods:
        on_step(method)
        runs[method] = run_method(method, reference, settings)
    scored = {role: reference_records(trained[role], scorers) for role in ROLES}
    return [
        CellRecord(
            seed=cell.seed,
            n_forget=cell.n_forget,
            n_retain=len(cell.forget) - cell.n_forget,
            base=scored["base"][k],
            retrain=scored["retrain"][k],
            floor=scored["floor"][k],
            methods={method: records[k] for method, records in runs.items()},
        )
        for k, cell in enumerate(cells)
    ]
