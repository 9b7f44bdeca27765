"""``l1-sparse``: fine-tune on the retain set under an L1 penalty that fades out (Jia et al., 2023)."""

from dataclasses import replace

from unlearn_core.baselines import ft

# The authors search this weight and publish no value: their README has ``--alpha ${alpha}``, and arg_parser.py's default of
# 0.2 is the noise of another method. 1e-4 is what Wu and Harandi (2024) ran the authors' program with on CIFAR-10
# (github.com/JingWu321/Scissorhands, Classification/sh/main_0.2_cifar10.sh).
L1 = 1e-4

PAPER = replace(ft.PAPER, l1=L1)

# FT_prune of github.com/OPTML-Group/Unlearn-Sparse at 80ba55d: the README's 10 epochs at 0.01, else as fine-tuning there.
# unlearn/FT.py: in epoch e of E, counted from 0, all parameters are penalised with weight alpha * (1 - e / E).
ORIGINAL = replace(ft.ORIGINAL, l1=L1)
