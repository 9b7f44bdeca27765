"""How a target is written into the network: ``kl`` (distil), ``mse`` (least squares), ``none`` (logit processor)."""

FINALIZERS: tuple[str, ...] = ("kl", "mse", "none")
