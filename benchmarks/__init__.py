"""One script per claim of speed; each prints ratios measured within one run, because machines are noisy."""
