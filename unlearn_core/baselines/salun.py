"""``salun``: random labelling on the half of the weights that matter most to the forget set (Fan et al., 2024)."""

from dataclasses import replace

from unlearn_core.baselines import rl_ft

SHARE = 0.5

PAPER = replace(rl_ft.PAPER, saliency_share=SHARE)

# The README's command for SalUn on CIFAR-10: random labelling at 0.013, 10 epochs, mask with_0.5 (sources in rl_ft.py).
#
# Weight decay acts on the salient weights alone, and the others keep the base's value exactly, as in the paper's equation
# and in the published code since a6e89fd ("Fix weight decay", February 2026). Before that the code masked the gradient only,
# so that the optimiser decayed the other weights too; the published numbers are from then.
#
# The mask ranks the summed gradient of all forgotten rows. The published generate_mask.py adds up the means over batches
# instead, in which the rows of a last, smaller batch weigh more.
ORIGINAL = replace(rl_ft.ORIGINAL, saliency_share=SHARE)
