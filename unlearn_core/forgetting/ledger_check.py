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

NO_KEY = "none: digests show accidents, and only signatures would show a history that was rewritten as a whole"


def verify_ledger(
    folder: Path,
    public_keys: Sequence[Path] = (),
    require_signature: bool = False,
    certificates: Sequence[Path] = (),
) -> list[Check]:
    """Check a ledger as it lies there; nothing is written.

    Args:
        public_keys: every entry must be signed by one of them (PEM).
        require_signature: every entry must be signed, by whatever key.
        certificates: each must be that of an entry, and have the entries before it as its history.
    """
    if not (folder / FILE_NAME).is_file():
        raise BadInput(f"no ledger at {folder}; 'unlearn forget --ledger {folder}' begins one")
    shown = [(path, read_certificate(path)) for path in certificates]
    expected = {read_public_key(path): path for path in public_keys}
    try:
        ledger = Ledger.read(folder)
    except BadInput as error:
        return [Check("entries", Found.FAILED, first_line(error))]
    checks = [*_check_entries(ledger), _check_signatures(ledger, expected, require_signature or bool(expected))]
    checks += [_check_file(ledger, role) for role in ledger.files or {}]
    return checks + [_check_certificate(ledger, path, certificate) for path, certificate in shown]


def summarise_ledger(checks: Sequence[Check]) -> str:
    """In words, what all of it shows, and what it does not."""
    failed = sum(check.failed for check in checks)
    if failed:
        return f"not verified: {failed} of {len(checks)} checks failed"
    others = f"all {sum(check.passed for check in checks)} other checks hold"
    found = {check.found for check in checks if check.what == "signatures"}
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


def _check_signatures(ledger: Ledger, expected: dict[bytes, Path], required: bool) -> Check:
    signers = ledger.signed_by()  # those that do not hold are refused when it is read
    unsigned = [number for number, key in enumerate(signers, start=1) if key is None]
    if unsigned:
        detail = (
            NO_KEY if len(unsigned) == len(signers) else f"entry {unsigned[0]} is not signed ({len(unsigned)} such)"
        )
        return Check("signatures", Found.FAILED if required else Found.UNSIGNED, detail)
    keys = ", ".join(sorted({key.hex() for key in signers if key is not None}))
    if not expected:
        said = f"by {keys}; anybody can make a key: give --public-key to check whose it is"
        return Check("signatures", Found.UNKNOWN, said)
    strange = [number for number, key in enumerate(signers, start=1) if key not in expected]
    if strange:
        names = ", ".join(map(str, expected.values()))
        return Check(
            "signatures", Found.FAILED, f"entry {strange[0]} is not by {names} ({len(strange)} such), but by {keys}"
        )
    return Check("signatures", Found.HOLDS, f"of all entries, by {keys}")


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
