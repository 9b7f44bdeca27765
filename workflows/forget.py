"""The commands ``forget`` and ``verify``. Light to import; the work is in ``deletion``, which brings torch."""

from __future__ import annotations

import argparse

from rich.console import Console


def forget(arguments: argparse.Namespace, console: Console) -> int:
    """One deletion request."""
    from workflows.deletion import carry_out_request

    return carry_out_request(arguments, console)


def verify(arguments: argparse.Namespace, console: Console) -> int:
    """Whether a certificate and what it speaks of still hold."""
    from unlearn_core.forgetting.certificate import verify_certificate

    checks = verify_certificate(arguments.certificate, dict(arguments.file), arguments.public_key)
    for check in checks:
        line = f"{'ok    ' if check.passed else 'FAILED'} {check.what}: {check.detail}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    failed = sum(not check.passed for check in checks)
    verdict = f"{failed} of {len(checks)} checks failed" if failed else f"verified: all {len(checks)} checks hold"
    console.print(verdict, markup=False, highlight=False, soft_wrap=True)
    return 1 if failed else 0


__all__ = ["forget", "verify"]
