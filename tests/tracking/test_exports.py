"""One small table in every form, written out by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

from tracking.claims import PAPER_CLAIMS, claims_table, judge
from tracking.tables.benchmark import benchmark_table
from tracking.tables.exports import frame, latex, markdown, rich_table, write_table
from tracking.tables.table import MISSING, Cell, Column, Group, Row, Table

TABLE = Table(
    name="small_0",
    title="A & B: 50 % of <all>",
    columns=(
        Column("kl_f", "KL_f", r"$\mathrm{KL}_f$"),
        Column("n", "|D_f|"),
        Column("verdict", "verdict", prose=True),
    ),
    groups=(
        Group((Row("base", (Cell(1 / 3, "0.33", 0.1, "0.10"), Cell(7, "7"), Cell("is_#1", "is_#1"))),), "class/0"),
        Group((Row("ft", (Cell(0.25, "0.25", 0.0, "0.00", bold=True), MISSING, MISSING), "1/2"),), "class/2"),
    ),
    caption="N > |D_f|",
    notes=("ft: 1 of 2",),
)


def test_markdown():
    assert markdown(TABLE) == (
        r"""**A & B: 50 % of &lt;all>**

| method | KL_f | \|D_f\| | verdict |
| :-- | --: | --: | :-- |
| *class/0* |  |  |  |
| base | 0.33 ± 0.10 | 7 | is_#1 |
| *class/2* |  |  |  |
| ft (1/2) | **0.25 ± 0.00** | -- | -- |

N > \|D_f\|.

- ft: 1 of 2
"""
    )


def test_latex():
    assert latex(TABLE) == (
        r"""\begin{table}[t]
  \centering
  \small
  \caption{A \& B: 50 \% of $<$all$>$. N $>$ $|$D\_f$|$. ft: 1 of 2.}
  \label{tab:small_0}
  \begin{tabular}{lrrp{3cm}}
    \toprule
     & $\mathrm{KL}_f$ & $|$D\_f$|$ & verdict \\
    \midrule
    \multicolumn{4}{l}{\textit{class/0}} \\
    base & 0.33 $\pm$ 0.10 & 7 & is\_\#1 \\
    \midrule
    \multicolumn{4}{l}{\textit{class/2}} \\
    ft (1/2) & \textbf{0.25 $\pm$ 0.00} & -- & -- \\
    \bottomrule
  \end{tabular}
\end{table}
"""
    )


def test_frames_have_every_digit():
    assert frame(TABLE).to_dict(as_series=False) == {
        "variant": ["class/0", "class/2"],
        "method": ["base", "ft"],
        "remark": ["", "1/2"],
        "kl_f": [1 / 3, 0.25],
        "kl_f_std": [0.1, 0.0],
        "n": [7, None],
        "verdict": ["is_#1", None],
    }


def test_files_are_named_after_the_table_and_read_back_the_same(tmp_path):
    paths = write_table(TABLE, tmp_path / "tables")
    assert [path.name for path in paths] == ["small_0.md", "small_0.tex", "small_0.csv", "small_0.parquet"]
    by_suffix = {path.suffix: path for path in paths}
    assert by_suffix[".md"].read_text() == markdown(TABLE)
    assert by_suffix[".tex"].read_text() == latex(TABLE)
    assert pl.read_parquet(by_suffix[".parquet"]).equals(frame(TABLE))
    assert pl.read_csv(by_suffix[".csv"])["kl_f"].to_list() == [1 / 3, 0.25]


def test_a_column_without_numbers_is_still_a_column_of_numbers():
    empty = Table("t", "", (Column("a", "a"),), (Group((Row("x", (MISSING,)),)),))
    assert frame(empty).schema == {"method": pl.String, "a": pl.Float64}


def printed(table, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(rich_table(table))
    return console.export_text()


def test_terminal():
    assert [line.rstrip() for line in printed(TABLE).splitlines()] == [
        "A & B: 50 % of <all>",
        "              KL_f |D_f| verdict",
        "────────────────────────────────",
        "class/0",
        "base     0.33±0.10     7 is_#1",
        "",
        "class/2",
        "ft (1/2) 0.25±0.00    -- --",
        "N > |D_f|",
    ]


def test_brackets_are_text_and_no_markup():
    """A label such as [tab:reco] must not vanish from a title."""
    table = replace(TABLE, title="[tab:x] [bold]", caption="[red]", groups=(Group((Row("[b]", TABLE.rows[0].cells),)),))
    text = printed(table)
    assert all(word in text for word in ("[tab:x] [bold]", "[red]", "[b]"))


def test_the_benchmark_fits_a_terminal_of_80_columns(made):
    """With the widest numbers of the paper: GA's KL_last of 24650 ± 2051, an Acc_f of 65.8 ± 12.1."""
    cells = [
        made.cell(
            seed,
            lda_mix=made.method("lda-mix", kl_t=0.3 + shift, acc_f=0.658 + shift),
            ga=made.method("ga", rte=1.0, last={"kl_t": 24650 + 20510 * shift}, kl_t=99.0, kl_f=28.0, acc_f=1.0),
        )
        for seed, shift in ((42, -0.1), (0, 0.1))
    ]
    text = printed(benchmark_table(made.variant(*cells)))
    assert "…" not in text
    assert "24650±2051" in text
    assert "65.8±10.0" in text


@pytest.mark.parametrize("width", [80, 160])
def test_sentences_are_broken_into_lines_and_not_cut(made, width):
    text = printed(claims_table(judge(made.tree(made.variant(made.cell())), PAPER_CLAIMS)), width)
    assert "…" not in text
