"""``salun``: random labelling on the half of the weights that matter most to the forget set (Fan et al., 2024)."""

from dataclasses import replace

from unlearn_core.baselines import rl_ft
from unlearn_core.recipes import Optimization

SHARE = 0.5

PAPER = replace(rl_ft.PAPER, saliency_share=SHARE)

# The authors' SGD 0.1, 10 epochs. Their weight decay is left out: it would move the weights that the mask protects.
ORIGINAL = replace(
    rl_ft.ORIGINAL,
    saliency_share=SHARE,
    optimization=replace(rl_ft.ORIGINAL.optimization or Optimization(lr=0.1, batch_size=256), weight_decay=0.0),
)
