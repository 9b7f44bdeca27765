"""``ga-ft``: one epoch of ascent on the forget set, then fine-tuning on the retain set."""

from unlearn_core.baselines.ft import ORIGINAL as FT_ORIGINAL
from unlearn_core.recipes import ASCEND_CROSS_ENTROPY, CROSS_ENTROPY, UNLEARNING_EPOCHS, Pass, Phase, Recipe, Visit

PAPER = Recipe(
    phases=(
        Phase(passes=(Pass(Visit.FORGET, ASCEND_CROSS_ENTROPY),), epochs=1),
        Phase(passes=(Pass(Visit.RETAIN, CROSS_ENTROPY),), epochs=UNLEARNING_EPOCHS - 1),
    )
)

# No authors published this combination on its own: the same two phases with the fine-tuning's published settings.
ORIGINAL = Recipe(
    phases=(
        Phase(passes=(Pass(Visit.FORGET, ASCEND_CROSS_ENTROPY),), epochs=1),
        Phase(passes=(Pass(Visit.RETAIN, CROSS_ENTROPY),), epochs=9),
    ),
    optimization=FT_ORIGINAL.optimization,
)
