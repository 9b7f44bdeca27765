"""Whether a ledger is what was written: its entries, their signatures, its files; and whether it knows a certificate.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unlearn_core.errors import BadInput, first_line
from unlearn_core.forgetting.certificate import Certificate, Check, Found, file_sha256, read_certificate
from unlearn_core.forgetting.keys import read_public_key
from unlearn_core.forgetting.ledger import FILE_NAME, Ledger

TRIES = 3
"""A request may change the ledger while it is looked at."""


def verify_ledger(
    folder: Path,
    public_key: Path | None = None,
    require_signature: bool = False,
    certificates: Sequence[Path] = (),
) -> list[Check]:
    """Check a ledger as it lies there; nothing is written, and no lock is taken.

    Args:
        public_key: the last entry must be signed by it (PEM), and with it all before.
        require_signature: it must be signed, by whatever key.
        certificates: each must be that of an entry, and have the entries before it as its history.
    """
    if not (folder / FILE_NAME).is_file():
        raise BadInput(f"no ledger at {folder}; 'unlearn forget --ledger {folder}' begins one")
    shown = [(path, read_certificate(path)) for path in certificates]
    required = require_signature or public_key is not None
    checks: list[Check] = []
    for _ in range(TRIES):
        before = (folder / FILE_NAME).read_bytes()
        checks = _check(folder, public_key, required, shown)
        if (folder / FILE_NAME).read_bytes() == before:
            break
    return checks


def _check(
    folder: Path, public_key: Path | None, required: bool, shown: Sequence[tuple[Path, Certificate]]
) -> list[Check]:
    try:
        ledger = Ledger.read(folder)
    except BadInput as error:
        return [Check("entries", Found.FAILED, first_line(error))]
    checks = [*_check_entries(ledger), _check_signature(ledger, public_key, required)]
    checks += [_check_file(ledger, role) for role in ledger.files or {}]
    return checks + [_check_certificate(ledger, path, certificate) for path, certificate in shown]


def summarise_ledger(checks: Sequence[Check]) -> str:
    """In words, what all of it shows, and what it does not."""
    failed = sum(check.failed for check in checks)
    if failed:
        return f"not verified: {failed} of {len(checks)} checks failed"
    others = f"all {sum(check.passed for check in checks)} other checks hold"
    found = {check.found for check in checks if check.what == "signature"}
    if Found.UNSIGNED in found:
        return f"intact but unsigned: {others}; whoever can write there could have rewritten all of it"
    if Found.UNKNOWN in found:
        return f"intact, and signed by a key that nobody vouched for: {others}; --public-key checks whose it is"
    if any(not check.passed for check in checks):
        return f"signed and intact since then: {others}; the rest was not kept by the version that began it"
    return f"verified: all {len(checks)} checks hold"


def _check_entries(ledger: Ledger) -> list[Check]:
    n, old = len(ledger.entries), sum(not entry.chained for entry in ledger.entries)
    said = f"{n}, with {len(ledger.forgotten)} rows forgotten in all, head {ledger.heads[-1]}"
    if not old:
        return [Check("entries", Found.HOLDS, said)]
    before = "1 was" if old == 1 else f"1 to {old} were"
    since = "nobody can tell whether they were changed" + (f" before entry {old + 1} was made" if old < n else "")
    return [Check("entries", Found.UNKNOWN, f"{said}; {before} made before entries were chained, and {since}")]


def _check_signature(ledger: Ledger, public_key: Path | None, required: bool) -> Check:
    """Of the last entry, which has the digest of all before it; signatures that do not hold are refused when it is read."""
    signer, last = ledger.signer(), f"entry {len(ledger.entries)}"
    if signer is None:
        detail = f"{last} has none: digests show accidents, only a signature would show a history that was rewritten"
        return Check("signature", Found.FAILED if required else Found.UNSIGNED, detail)
    by = f"of {last}, and with it of all before, by the key {signer.hex()}"
    if public_key is None:
        return Check(
            "signature", Found.UNKNOWN, f"{by}; anybody can make a key: give --public-key to check whose it is"
        )
    if signer != read_public_key(public_key):
        return Check("signature", Found.FAILED, f"{by}, which is not that of {public_key}")
    return Check("signature", Found.HOLDS, f"{by}, which is that of {public_key}")


def _check_file(ledger: Ledger, role: str) -> Check:
    known = ledger.entries[-1].files_sha256
    path = ledger.folder / (ledger.files or {})[role]
    try:
        ledger.file(role)
        found = file_sha256(path)
    except (BadInput, OSError) as error:
        return Check(role, Found.FAILED, first_line(error))
    if known is None:
        return Check(role, Found.UNKNOWN, f"{path}: its hash was not kept when it was written")
    return Check(role, Found.HOLDS, f"{path}  SHA-256 {found}")


def _check_certificate(ledger: Ledger, path: Path, certificate: Certificate) -> Check:
    """A certificate of a request that the ledger does not know, or knows after others, shows that entries are missing."""
    entry = ledger.find(certificate.digest)
    if entry is None:
        return Check("certificate", Found.FAILED, f"{path} is of no request that it knows ({certificate.digest[:12]})")
    before = ledger.history()[: entry.number - 1]
    if certificate.content.get("history") != before:
        return Check("certificate", Found.FAILED, f"{path} has another history than the entries before {entry.number}")
    return Check("certificate", Found.HOLDS, f"{path} is that of request {entry.number}")
