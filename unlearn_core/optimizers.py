"""torch's Adam and SGD, without its compiler.

Optimisers of torch guard themselves against ``torch.compile``, and to do so load all of it when the first one is made: two
seconds in every process that trains, about as long as torch itself takes. Nothing is compiled here; these make the same
updates without the guards.
"""

from __future__ import annotations

import inspect

import torch

__all__ = ["SGD", "Adam"]


class Adam(torch.optim.Adam):
    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class SGD(torch.optim.SGD):
    add_param_group = inspect.unwrap(torch.optim.SGD.add_param_group)
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
