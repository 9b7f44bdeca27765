"""``ft``: fine-tune on the retain set and let the network forget by itself."""

from unlearn_core.recipes import CROSS_ENTROPY, UNLEARNING_EPOCHS, Algorithm, Optimization, Pass, Phase, Recipe, Visit

PAPER = Recipe(phases=(Phase(passes=(Pass(Visit.RETAIN, CROSS_ENTROPY),), epochs=UNLEARNING_EPOCHS),))

# The fine-tuning baseline of SalUn's repository (Fan et al., 2024): SGD 0.01, 10 epochs, batch 256.
ORIGINAL = Recipe(
    phases=(Phase(passes=(Pass(Visit.RETAIN, CROSS_ENTROPY),), epochs=10),),
    optimization=Optimization(lr=0.01, batch_size=256, algorithm=Algorithm.SGD, momentum=0.9, weight_decay=5e-4),
)
