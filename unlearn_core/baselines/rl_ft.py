"""``rl-ft``: teach random other labels on the forget set, true ones on a retain sample (Chen et al., 2023)."""

from unlearn_core.recipes import CROSS_ENTROPY, UNLEARNING_EPOCHS, Algorithm, Optimization, Pass, Phase, Recipe, Visit

PAPER = Recipe(
    phases=(Phase(passes=(Pass(Visit.FORGET_AND_RETAIN_SAMPLE, CROSS_ENTROPY),), epochs=UNLEARNING_EPOCHS),),
    random_forget_labels=True,
)

# Random labelling as SalUn's repository runs it without a mask: SGD 0.1, 10 epochs over forget, then retain data.
ORIGINAL = Recipe(
    phases=(Phase(passes=(Pass(Visit.FORGET, CROSS_ENTROPY), Pass(Visit.RETAIN, CROSS_ENTROPY)), epochs=10),),
    optimization=Optimization(lr=0.1, batch_size=256, algorithm=Algorithm.SGD, momentum=0.9, weight_decay=5e-4),
    random_forget_labels=True,
)
