"""ROC curves of an audit on two log axes, where a low false positive rate can be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracking.audits import BASE, FLOOR, Audit
from tracking.figures.style import FigureFile, height_beside_legend, look_of, new_figure, save, styled
from tracking.tables.table import counted
from tracking.tree import slug

LEAST = 1e-4


def write_roc(directory: Path, audit: Audit) -> FigureFile:
    """A curve for every row; what lies below the axes is not drawn."""
    rates = audit.entry["false_positive_rates"]
    rows = [name for name in (FLOOR, BASE) if name in audit.results]
    rows += sorted(audit.methods, key=lambda name: -audit.auc(name)[0])
    with styled():
        figure = new_figure(7.5, height_beside_legend(len(rows) + 2))
        axes = figure.add_subplot()
        axes.plot([LEAST, 1], [LEAST, 1], color="0.6", linewidth=0.8, linestyle=":", label="chance")
        for i, name in enumerate(rows):
            shown = [(x, y) for x, y in zip(rates, audit.results[name]["ulira"]["curve"], strict=True) if y >= LEAST]
            label, every = f"{name}: {audit.auc(name)[0]:.3f}", (3 * i % 12, 12)
            axes.plot(*zip(*shown, strict=True), label=label, markevery=every, **look_of(name).plotted())
        axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1.1))
        axes.set(xlabel="false positive rate: retrained networks taken for unlearned", ylabel="true positive rate")
        axes.set_title(f"{audit.name}: U-LiRA, {counted(audit.entry['shadows'], 'shadow')}")
        axes.legend(title="AUC", loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=3.2)
        caption = (
            "How often an attacker who reads a network's answer to one forgotten record finds an unlearned network, "
            "against how often a retrained one is taken for unlearned; each network is attacked with fits from other "
            "shadows. On the dotted line the two cannot be told apart; the floor, retrains beside retrains, is there but "
            "for noise."
        )
        return save(figure, directory, f"roc_{slug(audit.name)}", f"ROC of the attacker's audit: {audit.name}", caption)


def write_rocs(directory: Path, audits: Sequence[Audit]) -> list[FigureFile]:
    return [write_roc(directory, audit) for audit in audits]
