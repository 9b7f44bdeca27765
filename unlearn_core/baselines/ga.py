"""``ga``: ascend the loss on the forget set (Graves et al., 2021)."""

from unlearn_core.recipes import (
    ASCEND_CROSS_ENTROPY,
    UNLEARNING_EPOCHS,
    Algorithm,
    Optimization,
    Pass,
    Phase,
    Recipe,
    Visit,
)

PAPER = Recipe(phases=(Phase(passes=(Pass(Visit.FORGET, ASCEND_CROSS_ENTROPY),), epochs=UNLEARNING_EPOCHS),))

# As published beside SalUn (Fan et al., 2024): SGD 1e-4, 5 epochs, batch 256.
ORIGINAL = Recipe(
    phases=(Phase(passes=(Pass(Visit.FORGET, ASCEND_CROSS_ENTROPY),), epochs=5),),
    optimization=Optimization(lr=1e-4, batch_size=256, algorithm=Algorithm.SGD, momentum=0.9, weight_decay=5e-4),
)
