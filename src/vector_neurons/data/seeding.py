"""Seeds derived from other seeds and names."""

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a seed that depends on all parts (a seed, a name, an index) and is the same on every machine.

    >>> derive_seed(0, "chair")
    3393460128
    """
    return int.from_bytes(
        hashlib.sha256("/".join(map(str, parts)).encode(errors="surrogateescape")).digest()[:4], "little"
    )
