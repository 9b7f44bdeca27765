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

# The README of github.com/OPTML-Group/Unlearn-Sparse (Jia et al., 2023): SGD 1e-4, 5 epochs, batch 256. When asked why it
# does not forget, its authors advise 5e-4 or 1e-3 (github.com/OPTML-Group/Unlearn-Saliency, issue 8).
ORIGINAL = Recipe(
    phases=(Phase(passes=(Pass(Visit.FORGET, ASCEND_CROSS_ENTROPY),), epochs=5),),
    optimization=Optimization(lr=1e-4, batch_size=256, algorithm=Algorithm.SGD, momentum=0.9, weight_decay=5e-4),
)
# on class 1, subclass 1 and 1000 random rows of CIFAR-10 features, mlp1, seed 100
NOTE_ON_ORIGINAL = "moves next to nothing on heads: at its authors' rate KL_f stays within 1 % of the base's"
