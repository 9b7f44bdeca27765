"""The six gradient baselines as recipes. A new one is a file with ``PAPER`` and ``ORIGINAL`` and a line in the table."""

from collections.abc import Mapping
from types import MappingProxyType

from unlearn_core.baselines import ft, ga, ga_ft, rl_ft, salun, scrub
from unlearn_core.errors import BadInput
from unlearn_core.spec import Recipe

PRESETS: tuple[str, ...] = ("paper", "original")

RECIPES: Mapping[str, Mapping[str, Recipe]] = MappingProxyType(
    {
        name: MappingProxyType({"paper": module.PAPER, "original": module.ORIGINAL})
        for name, module in {
            "ft": ft,
            "ga": ga,
            "ga-ft": ga_ft,
            "rl-ft": rl_ft,
            "scrub": scrub,
            "salun": salun,
        }.items()
    }
)


def baseline_recipe(method: str, preset: str = "paper") -> Recipe:
    """The recipe of a baseline: ``paper`` as this comparison runs it, ``original`` as its authors published it."""
    if method not in RECIPES:
        raise BadInput(f"unknown baseline {method!r}; there are {', '.join(RECIPES)}")
    if preset not in PRESETS:
        raise BadInput(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    return RECIPES[method][preset]
