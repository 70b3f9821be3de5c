"""Philox 4x32-10: published vectors, and the native stream equal to the reference's."""

import numpy as np
import pytest

from flarecore import _C
from flarecore.reference.philox import philox4x32, philox_uniform

# Known answers distributed with Random123 (kat_vectors, philox4x32 with 10 rounds).
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, expected", KNOWN, ids=["zeros", "ones", "pi"])
def test_known_vectors(counter, key, expected):
    assert philox4x32(counter, key) == expected
    assert tuple(_C.testing.philox4x32(counter, key)) == expected


def test_native_uniform_equals_reference():
    rng = np.random.default_rng(3)
    for _ in range(200):
        seed = int(rng.integers(0, 2**64, dtype=np.uint64))
        stream, position, pass_index = (int(v) for v in rng.integers(0, 2**32, 3))
        expected = philox_uniform(seed, stream, position, pass_index)
        assert _C.testing.philox_uniform(seed, stream, position, pass_index) == expected
        assert np.float32(expected) == expected, "the draw is not exact in float32"


def test_each_word_of_the_key_matters():
    draws = {
        philox_uniform(*words)
        for words in [
            (0, 0, 0, 0),
            (1, 0, 0, 0),
            (2**32, 0, 0, 0),
            (0, 1, 0, 0),
            (0, 0, 1, 0),
            (0, 0, 0, 1),
        ]
    }
    assert len(draws) == 6


def test_uniform_never_reaches_an_end_and_is_uniform():
    draws = np.array([philox_uniform(9, 0, position, 0) for position in range(20000)])
    assert draws.min() > 0.0 and draws.max() < 1.0
    counts = np.histogram(draws, bins=50, range=(0, 1))[0]
    statistic = ((counts - 400) ** 2 / 400).sum()
    assert statistic < 100, "chi-square of 49 degrees of freedom, p < 1e-5"
