"""The gradient baselines as recipes: each file has ``PAPER`` and ``ORIGINAL``, and a line in ``methods``."""
