"""``bad-teacher``: on the forget set imitate a network that was never trained, elsewhere the base (Chundawat et al., 2023).

A retrain still knows a great deal about rows that it has not seen; the untrained teacher knows nothing of them.
"""

from unlearn_core.recipes import UNLEARNING_EPOCHS, Optimization, Pass, Phase, Recipe, Term, Toward, Visit

IMITATE: tuple[Term, ...] = (Term(Toward.TWO_TEACHERS),)

PAPER = Recipe(phases=(Phase(passes=(Pass(Visit.FORGET_AND_RETAIN_SAMPLE, IMITATE),), epochs=UNLEARNING_EPOCHS),))

# CIFARSuper20_Rocket_Unlearn.ipynb of github.com/vikram2000b/bad-teaching-unlearning at f1aa988: one epoch over the forget
# set and three tenths of the retain set, Adam 1e-4, batch 256, T = 1. Its kl_div is a mean over classes too: a factor of
# 1/C, which Adam divides out again.
ORIGINAL = Recipe(
    phases=(Phase(passes=(Pass(Visit.FORGET_AND_30_PERCENT, IMITATE),), epochs=1),),
    optimization=Optimization(lr=1e-4, batch_size=256),
)
