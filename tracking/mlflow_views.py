"""What MLflow's UI opens on: views with columns, order and charts, kept as tags of the experiment, and links to them.

A view is what the UI's own "share" button writes: the state of its runs page as JSON, below ``mlflow.sharedViewState.``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from unlearn_core.grid import Variant

EXPERIMENT_TAGS: Mapping[str, str] = {
    "mlflow.experimentKind": "custom_model_development",  # else MLflow 3 opens its half for language models
    "mlflow.experiment.primaryMetric.name": "kl_f",
}
VIEW = "mlflow.sharedViewState."
VARIANTS = "variants"
"""The view that has a line for every variant."""
COST = "cost_percent"
LOG_COST = "log10_cost_percent"
"""The metric that charts have as their x axis: MLflow draws no metric on a log axis there."""
COLUMNS: tuple[str, ...] = (
    "tags.`best_method`",
    "metrics.`kl_f/best`",
    "metrics.`kl_t/best`",
    f"metrics.`{COST}/best`",
    "metrics.`kl_f/floor`",
    "metrics.`kl_f/base`",
    "tags.`best_at_1_percent`",
    "metrics.`kl_f/best_at_1_percent`",
    "metrics.`kl_f_over_short/best_at_1_percent`",
)


def variants_view() -> str:
    """Every variant with its numbers, in the order of their names."""
    return json.dumps(
        {
            **_search("tags.kind = 'variant'"),
            "selectedColumns": COLUMNS,
            "runsHiddenMode": "SHOW_ALL",
        }
    )


def methods_view(variant: Variant) -> str:
    """The methods of a variant: KL_f, KL_t (log axes) over the log of the cost."""
    section = "closeness"
    charts = [_chart(measure, title, section) for measure, title in CHARTS.items()]
    return json.dumps(
        {
            **_search(f"tags.kind = 'mean' and tags.variant = '{variant}'"),
            "selectedColumns": [f"metrics.`{name}`" for name in ("kl_f", "kl_t", COST)],
            "runsHiddenMode": "SHOW_ALL",
            "compareRunCharts": charts,
            "compareRunSections": [
                {"uuid": section, "name": SECTION, "display": True, "columns": 2, "cardHeight": 420}
            ],
            "isAccordionReordered": False,
            "globalLineChartConfig": {"xAxisKey": "metric", "selectedXAxisMetricKey": LOG_COST, "lineSmoothness": 0},
        }
    )


SECTION = "KL to the retrain, nats, over log10 of the cost in % of a retrain"
"""The UI shows it, and not the charts' own titles."""
CHARTS: Mapping[str, str] = {
    "kl_f": "KL_f, nats, on the forgotten rows, over log10 of the cost in % of a retrain",
    "kl_t": "KL_t, nats, on the test set, over log10 of the cost in % of a retrain",
}


def methods_key(variant: Variant) -> str:
    return f"methods-{str(variant).replace('/', '-')}"


def _search(found: str) -> dict[str, Any]:
    return {
        "searchFilter": found,
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
    }


def _chart(measure: str, title: str, section: str) -> dict[str, Any]:
    return {
        "uuid": f"{section}-{measure}",
        "type": "LINE",
        "metricSectionId": section,
        "displayName": title,
        "metricKey": measure,
        "selectedMetricKeys": [measure],
        "runsCountToCompare": 40,
        "lineSmoothness": 0,
        "xAxisKey": "metric",
        "selectedXAxisMetricKey": LOG_COST,
        "scaleType": "log",
        "displayPoints": True,
        "range": {},
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": True,
        "deleted": False,
        "isGenerated": False,
    }


def variants_link(experiment: str) -> str:
    return f"#/experiments/{experiment}/runs?viewStateShareKey={VARIANTS}&workflowType=machine_learning"


def methods_link(experiment: str, variant: Variant) -> str:
    """The methods of a variant as charts."""
    key = methods_key(variant)
    return (
        f"#/experiments/{experiment}/runs?viewStateShareKey={key}&compareRunsMode=CHART&workflowType=machine_learning"
    )


def run_link(experiment: str, run: str, artifact: str = "") -> str:
    """A run's page, or a file of it."""
    shown = f"artifacts/{artifact}" if artifact else "overview"
    return f"#/experiments/{experiment}/runs/{run}/{shown}?workflowType=machine_learning"
