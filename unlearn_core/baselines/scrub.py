"""``scrub``: leave the teacher on the forget set, stay with it on the retain set (Kurmanji et al., 2023).

Its ascent starts at a minimum. The student is the teacher at first, so that the gradient of their divergence is zero but
for rounding (1e-8). SGD ignores it; Adam, whose steps are as long as the learning rate whatever the gradient, follows it in
steps of full length. Under ``paper`` the way out of the minimum is therefore chosen by rounding and by the order of rows: on
digits, subclass 0, test rows end 0.6 to 1.2 nats from the base over five orders (``python -m benchmarks.row_orders``). The
same seed gives the same order and the same bits, in whatever stack; compare means over seeds, never single runs. Another
machine may round otherwise.
"""

from unlearn_core.recipes import UNLEARNING_EPOCHS, Algorithm, Optimization, Pass, Phase, Recipe, Term, Toward, Visit


def _leave_teacher(temperature: float) -> tuple[Term, ...]:
    return (Term(Toward.TEACHER, weight=-1.0, temperature=temperature),)


def _stay_with_teacher(alpha: float, gamma: float, temperature: float) -> tuple[Term, ...]:
    return (Term(Toward.TEACHER, weight=alpha, temperature=temperature), Term(Toward.LABELS, weight=gamma))


# The ascent goes on in all epochs: that is what makes the paper's last epoch diverge.
PAPER = Recipe(
    phases=(
        Phase(
            passes=(
                Pass(Visit.FORGET, _leave_teacher(2.0)),
                Pass(Visit.RETAIN_SAMPLE, _stay_with_teacher(alpha=0.5, gamma=1.0, temperature=2.0)),
            ),
            epochs=UNLEARNING_EPOCHS,
        ),
    )
)
NOTE_ON_PAPER = (
    "its ascent starts at a gradient of zero, of which Adam enlarges the rounding: over five row orders from one network "
    "(digits, test rows) it ends 1.0 ± 0.2 nats away, so that most of its spread over seeds is that"
)

# large_scale_unlearning.ipynb of github.com/meghdadk/SCRUB at 98ffb11, for CIFAR-10: two epochs with ascent (msteps), one
# without, all retain data, SGD 5e-4, T = 4; forgotten batches of 512, retained ones of 256 (its sgda_batch_size of 128 is
# read nowhere).
_RETAIN = Pass(Visit.RETAIN, _stay_with_teacher(alpha=0.001, gamma=0.99, temperature=4.0))
ORIGINAL = Recipe(
    phases=(
        Phase(passes=(Pass(Visit.FORGET, _leave_teacher(4.0), batch_size=512), _RETAIN), epochs=2),
        Phase(passes=(_RETAIN,), epochs=1),
    ),
    optimization=Optimization(lr=5e-4, batch_size=256, algorithm=Algorithm.SGD, momentum=0.9, weight_decay=5e-4),
)
# on class 1, subclass 1 and 1000 random rows of CIFAR-10 features, mlp1, seed 100
NOTE_ON_ORIGINAL = "moves next to nothing on heads: at its authors' rate KL_f stays within 4 % of the base's"
