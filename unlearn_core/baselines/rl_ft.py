"""``rl-ft``: teach random labels on the forget set, true ones on retained rows (Chen et al., 2023; Fan et al., 2024)."""

from unlearn_core.recipes import (
    CROSS_ENTROPY,
    UNLEARNING_EPOCHS,
    Algorithm,
    ForgetLabels,
    Optimization,
    Pass,
    Phase,
    Recipe,
    Visit,
)

PAPER = Recipe(
    phases=(Phase(passes=(Pass(Visit.FORGET_AND_RETAIN_SAMPLE, CROSS_ENTROPY),), epochs=UNLEARNING_EPOCHS),),
    forget_labels=ForgetLabels.OTHER_ONCE,
)
NOTE_ON_PAPER = "draws a label among the other classes once: with two classes it teaches the wrong one"

# Random labelling (RL.py) of github.com/OPTML-Group/Unlearn-Saliency at a6e89fd, as it runs on CIFAR-10: each epoch first
# visits the forget set, with labels drawn from all classes whenever a batch comes up, then the retain set; SGD with momentum
# 0.9, weight decay 5e-4 and batch 256 (arg_parser.py). 10 epochs at rate 0.013 is the README's command for CIFAR-10 and the
# only rate that it gives since f31f82e (April 2024). The 0.1 before that is the upper end of the range [1e-4, 1e-1] that
# its authors search for random labelling (github.com/OPTML-Group/Unlearn-WorstCase, issue 1). They give no other rate for
# random labelling without a mask.
ORIGINAL = Recipe(
    phases=(Phase(passes=(Pass(Visit.FORGET, CROSS_ENTROPY), Pass(Visit.RETAIN, CROSS_ENTROPY)), epochs=10),),
    optimization=Optimization(lr=0.013, batch_size=256, algorithm=Algorithm.SGD, momentum=0.9, weight_decay=5e-4),
    forget_labels=ForgetLabels.ANY_EACH_EPOCH,
)
