"""Quotations: a document that is older than its file is noticed, and a reader can tell a command's numbers from a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows.quoting import quoted_problem, renew

MADE = 'steps,ms,command,date\n"1,000",0.07,python -m it,2026-01-02\n'
TRIED = "idea,KL,trial,date\nboth ||,0.1 / 0.2,seed 1,2026-01-02\nnone,0.3,seed 2,2026-01-02\n"
RESULTS = (
    "arch,scenario,key,method,last_kl_f,best_kl_f\n"
    "mlp1,class,0,base,,16.68\nmlp1,class,0,short,0.1234,0.1\nmlp1,random,50,base,,0.6\nlinear,class,0,base,,3\n"
)
DOCUMENT = "**Costs of all, by hand**\n\n| a |\n| --: |\n| 1 |\n\nits note\n\n</details>\n\n**Costs**\n"


@pytest.mark.parametrize(
    ("file", "content", "part", "shown"),
    [
        (
            "d.csv",
            MADE,
            "",
            "| steps | ms |\n| --: | --: |\n| 1,000 | 0.07 |\n\nMade by `python -m it` on 2026-01-02.\n\n",
        ),
        (
            "d.csv",
            TRIED,
            "",
            "| idea | KL |\n| :-- | :-- |\n| both \\|\\| | 0.1 / 0.2 |\n| none | 0.3 |\n\n"
            "*A record that no command makes again:* seed 1 (2026-01-02); seed 2 (2026-01-02).\n\n",
        ),
        (
            "d.csv",
            RESULTS,
            ": kl_f of mlp1 by base, short",
            "|  | base | short |\n| :-- | --: | --: |\n| class 0 | 17 | 0.12 |\n| random 50 | 0.6 | -- |\n\n",
        ),
        ("d.md", DOCUMENT, ": Costs of all", "**Costs of all, by hand**\n\n| a |\n| --: |\n| 1 |\n\nits note\n\n"),
    ],
)
def test_a_quotation_is_what_the_file_says_and_is_renewed_if_it_is_not(file, content, part, shown, tmp_path: Path):
    (tmp_path / file).write_text(content)
    quoting = tmp_path / "mine.md"
    quoting.write_text(f"Mine\n\n<!-- part of {file}{part} -->\n<!-- /part -->\nEnd\n")
    assert "is old; run 'make quotes'" in str(quoted_problem(quoting, tmp_path))
    assert renew(quoting, tmp_path)
    assert quoting.read_text() == f"Mine\n\n<!-- part of {file}{part} -->\n{shown}<!-- /part -->\nEnd\n"
    assert quoted_problem(quoting, tmp_path) is None
    assert not renew(quoting, tmp_path)


@pytest.mark.parametrize(
    "named", ["gone.csv", "d.csv: kl_q of mlp1 by base", "d.csv: kl_f of resnet18 by base", "d.md: X"]
)
def test_what_cannot_be_quoted_is_a_problem(named, tmp_path: Path):
    (tmp_path / "d.csv").write_text(RESULTS)
    (tmp_path / "d.md").write_text(DOCUMENT)
    quoting = tmp_path / "mine.md"
    quoting.write_text(f"<!-- part of {named} -->\nkept\n<!-- /part -->\n")
    assert "does not say" in str(quoted_problem(quoting, tmp_path))
    assert not renew(quoting, tmp_path)
