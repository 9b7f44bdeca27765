"""``scrub``: leave the teacher on the forget set, stay with it on the retain set (Kurmanji et al., 2023)."""

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

# The authors' CIFAR-10 settings: two epochs with ascent (msteps), one without, all retain data, SGD 5e-4, T = 4.
_RETAIN = Pass(Visit.RETAIN, _stay_with_teacher(alpha=0.001, gamma=0.99, temperature=4.0), batch_size=128)
ORIGINAL = Recipe(
    phases=(
        Phase(passes=(Pass(Visit.FORGET, _leave_teacher(4.0), batch_size=512), _RETAIN), epochs=2),
        Phase(passes=(_RETAIN,), epochs=1),
    ),
    optimization=Optimization(lr=5e-4, batch_size=128, algorithm=Algorithm.SGD, momentum=0.9, weight_decay=5e-4),
)
