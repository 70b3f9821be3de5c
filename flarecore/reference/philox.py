"""Philox 4x32-10 in plain Python integers, the twin of csrc/common/philox.h.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

__all__ = ["philox4x32", "philox_uniform"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Counter = tuple[int, int, int, int]
Key = tuple[int, int]


def philox4x32(counter: Counter, key: Key) -> Counter:
    """Encrypt a counter with ten rounds.

    Parameters
    ----------
    counter
        Four unsigned 32-bit words.
    key
        Two unsigned 32-bit words.

    Returns
    -------
    tuple of int
        Four random unsigned 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def philox_uniform(seed: int, stream: int, position: int, pass_index: int) -> float:
    """Draw the uniform number of one sampled token.

    Parameters
    ----------
    seed
        Unsigned 64-bit seed: the key.
    stream, position, pass_index
        Unsigned 32-bit words of the counter: which sequence, the index of the token in it, and
        which pass over that index (a draft is 0, a regeneration 1).

    Returns
    -------
    float
        In (0, 1): 23 random bits and a half, exact in float32.
    """
    word = philox4x32((position, stream, pass_index, 0), (seed & _MASK, (seed >> 32) & _MASK))[0]
    return ((word >> 9) + 0.5) / 2.0**23
