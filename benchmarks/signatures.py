"""How long does it take to check a signature by HMAC (format version 1) and by Ed25519 (version 2)?

Both in one process, in turn, over the same bytes in private memory; processor time of the checking thread.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import statistics
import time

from benchmarks.common import origin
from svc.artifact import ed25519
from svc.artifact.keys import SigningKeys, verify
from svc.artifact.layout import Parsed
from svc.artifact.store_local import private_buffer

SEED = bytes(range(32))


def artifacts(n_bytes: int) -> dict[str, tuple[Parsed, SigningKeys]]:
    content = private_buffer(n_bytes)
    pattern = bytes(range(256)) * 4096
    for start in range(0, n_bytes, len(pattern)):
        content[start : start + len(pattern)] = pattern[: n_bytes - start]
    header = memoryview(b"{}")
    signature = ed25519.sign(SEED, ed25519.ARTIFACT, hashlib.sha256(content).digest())
    return {
        "HMAC": (
            Parsed(1, "k", header, content, content, hmac.digest(SEED, content, "sha256")),
            SigningKeys((("k", SEED),)),
        ),
        "Ed25519": (
            Parsed(2, "k", header, content, content, signature),
            SigningKeys((), (("k", ed25519.public_half(SEED)),)),
        ),
    }


def measure(n_bytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by the kind of signature."""
    seconds: dict[str, list[float]] = {"HMAC": [], "Ed25519": []}
    both = artifacts(n_bytes)
    for parsed, keys in both.values():
        verify(parsed, keys)
    for _ in range(rounds):
        for kind, (parsed, keys) in both.items():
            began = time.thread_time()
            verify(parsed, keys)
            seconds[kind].append(time.thread_time() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=650)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("\n".join(origin()))
    seconds = measure(arguments.mib << 20, arguments.rounds)
    for kind, all_of_it in seconds.items():
        print(f"{kind:8} {statistics.median(all_of_it):.3f} s (median of {arguments.rounds}), {arguments.mib} MiB")
    ratio = statistics.median(seconds["Ed25519"]) / statistics.median(seconds["HMAC"])
    print(f"ratio    {ratio:.3f}")


if __name__ == "__main__":
    main()
