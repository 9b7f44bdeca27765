"""``short``: a retrain cut short. No teacher, no forgotten rows: plain training on D_r, ended early, its weights averaged.

It is what a sceptical user would do instead of unlearning, and stands in every comparison: at each cost, is anything
closer to the retrain than a retrain of that cost? It starts from a draw of its own (for ResNet-18, from the pretrained
weights that the base started from, with a classifier of its own), at three times the retrain's learning rate.

``short-small`` is the same in batches of 128, for heads a quarter of the retrain's. A step on few rows is cheaper, and what
a cut-short training lacks is steps: on the development subclass (mlp1, seed 100) KL_f is 0.08 at 1.7 % of a retrain, where
``short`` is at 0.30 at 1.2 % and 0.085 at 3 %. On random rows it is closer below 1 % only, on a class on KL_f only.

``short-warm`` starts from shrunken base weights mixed with fresh ones (Ash and Adams, 2020), but for the outputs of a class
that is forgotten, which are all fresh.

``short-hard`` draws its rows by how unsure models that never saw them are (``doubt``), and weighs them by what each then
stands for: most rows teach next to nothing. What they say is prepared with the state (``crossfit``); they have seen the
records, which decide a little of which retained rows are looked at, and nothing of what is learned there in the mean.
``short-hard-warm`` does so from a share of the base's weights, ``short-hard-linear`` at three times its rate as well, and
``short-hard-group`` from less of them: on the odd subclasses, which are in no grid, 0.4 remembers some that 0.3 does not; on
classes 0.4 is closer than 0.3 at every cost. A group that the retained rows do not stand for is remembered by any share
(``kept_answers``).

A linear head has four more. ``short-hard-slow``, for groups, is ``short-hard-linear`` in smaller steps, which pays
from 8 % of a retrain on. ``short-hard-near``, for classes, starts from more of the base: their output is fresh, and what
the others remember is little. ``newton-hard``, for scattered rows, goes on from a Newton step, in small steps: what the step
could not know of the retained rows, these say. ``short-hard-base`` does so from the base itself, for little, where no step
is taken: what fresh weights undo takes longer to mend than scattered rows are worth.

``short-young`` goes on from a young network, one that was trained on D for a few epochs (``young``), in small steps: it has
learned what a retrain learns first and has not come to remember single records yet. The outputs of a class that is forgotten
start fresh. It is for networks that are trained end to end, and for heads with two hidden layers if little may be spent.

``short-same`` starts from the very weights that the base started from, and the retrain does. Who kept them, or the seed that
they were drawn from, can; a request to somebody else's network cannot.
"""

from dataclasses import replace

from unlearn_core.recipes import CROSS_ENTROPY, Pass, Phase, Recipe, Start, Visit

SHORT = Recipe(
    phases=(Phase(passes=(Pass(Visit.RETAIN, CROSS_ENTROPY),), epochs=5),),
    start=Start.FRESH,
    rate=3.0,
    # the mean of the weights then lies at three quarters of the way, as that of the second half of the steps does
    averaging=2.0,
    # from 0.03 % of 50 epochs on (a single step): what claims to unlearn at 0.1 % of a retrain has this to beat
    record_at=(1 / 64, 1 / 32, 1 / 16, 1 / 8, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0),
    batch_statistics=True,
)

SMALL_BATCH = 128
SMALL = replace(
    SHORT,
    phases=(Phase(passes=(Pass(Visit.RETAIN, CROSS_ENTROPY, batch_size=SMALL_BATCH),), epochs=3),),
    record_at=tuple(at for at in SHORT.record_at if at <= 3),
)

# its rate falls, so that every record ends a training of its own: what ``forget`` hands out for 0.2, 1, 3 and 10 %
WARM = replace(SHORT, base_share=0.4, last_rate=0.1, averaging=None, record_at=(0.1, 0.5, 1.5, 5.0))

SAME = replace(SHORT, start=Start.INITIAL)

YOUNG = replace(
    WARM,
    phases=(replace(SHORT.phases[0], epochs=3),),
    base_share=1.0,
    rate=0.3,
    # about 0.3, 1, 3 and 10 % of a retrain of 25 epochs
    record_at=(0.07, 0.24, 0.74, 2.4),
)

HARD_ROWS = Pass(Visit.RETAIN_DRAWN, CROSS_ENTROPY, batch_size=256)
# hard rows come again and again: at three times the retrain's rate weights follow single ones of them
HARD = replace(SHORT, phases=(Phase(passes=(HARD_ROWS,), epochs=5),), rate=2.0)
# about 0.2, 1, 3 and 10 % of a retrain, in batches that take a fifth longer
HARD_WARM = replace(WARM, phases=HARD.phases, record_at=(0.07, 0.45, 1.4, 4.6))
HARD_GROUP = replace(HARD_WARM, base_share=0.3, record_at=(0.07, 0.3, 0.9))
# a linear head has no other minimum to fall into: larger steps lead there sooner
HARD_LINEAR = replace(HARD_WARM, rate=9.0, record_at=(0.05, 0.35, 1.1, 3.6))
# who trains for longer needs smaller steps, or follows single hard rows at the end
HARD_SLOW = replace(HARD_LINEAR, rate=5.0, record_at=(2.2, 3.6))
HARD_NEAR = replace(HARD_LINEAR, base_share=0.7, rate=6.0, record_at=(0.05, 0.35, 1.1, 2.2, 3.6))
HARD_FROM_STEP = replace(HARD_LINEAR, base_share=1.0, rate=1.0, record_at=(0.35, 1.1, 2.2, 3.6))
HARD_FROM_BASE = replace(HARD_FROM_STEP, record_at=HARD_NEAR.record_at)
