"""How and where a step runs: identity, store, workers, executor. What a step means is ``kinds``' alone."""
