"""Independent random streams from one seed.

Each use of randomness draws from a stream named after its purpose, so that adding a use never shifts another one.
"""

import hashlib


def derive_seed(seed: int, *purpose: str) -> int:
    """A 63-bit seed for one purpose under one cell seed; stable across platforms and library versions."""
    text = "/".join((str(int(seed)), *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
