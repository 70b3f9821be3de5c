"""An engine whose cache of passages is empty."""

from helpers import TinyLlama, open_engine, random_ids

HEAD = random_ids(21, seed=1)
QUESTION = random_ids(9, seed=2)
PASSAGES = [random_ids(40, seed=10 + n) for n in range(5)]


def open_cached(**options):
    engine = open_engine(TinyLlama(), **options)
    sequence = engine.sequence([*HEAD, *QUESTION], num_head_tokens=21, num_reserved=64)
    return engine, sequence
