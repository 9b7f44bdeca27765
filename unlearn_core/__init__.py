"""Machine unlearning by proxies: the science, free of Ray, of MLflow and of printing.

Where to look for a formula (labels are those of the paper):

=======================  ==========================================================
``grid``                 what the paper's grid is: variants, scenarios, seeds
``methods``              one table of all methods, and the settings of a run
``recipes``              training as data: what is hashed into step ids
``data``                 feature sets, images, backbones, and which rows are to be forgotten
``nets``                 the networks: heads in stacks, ResNets, modules of one's own
``proxies``              P(y|x) and P_r(y|x); the paper's in closed form  [sec:lda2c]
``eta``                  h(eta), admissibility, eta_max              [par:normalization]
``problem``              the data behind a cell or a request, and what is prepared of it
``preparations``         what is computed once, before any request: ``crossfit``, ``curvature``, moments, probe
``edits``                changes of weights in one step: ``newton``, ``truncate``
``request_kind``         a class, rows like held-out ones, or a group: tested
``closeness``            how close to a retrain, without one
``target``               fit, eta, target: softmax(f + eta_max * signal)  [eq:lda2c-lstsq-grad]
``finalize``             how the target is written into the network
``baselines``            the six gradient methods, one recipe a file
``training``             the one loop that runs all of them
``audit``                KL, bounds, Stein, membership
``auto``                 which proxy a request gets, chosen without a retrain
``references``           base, retrain and floor: what everything is measured against
``unlearning``           one method on the cells of a variant
``records``              what these return
``forgetting``           a deletion request on a model of one's own: ``forget``
=======================  ==========================================================

Nothing is imported here before it is asked for, so that reading records never loads torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unlearn_core.forgetting.forget import forget as forget
    from unlearn_core.forgetting.opening import prepare as prepare

__all__ = ["forget", "prepare"]

_FOUND_IN = {"forget": "unlearn_core.forgetting.forget", "prepare": "unlearn_core.forgetting.opening"}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_FOUND_IN[name]), name)
