"""Attached passages: random walks against fresh sequences."""

import numpy as np
import pytest
from helpers import DECODE, TinyLlama, open_engine, random_ids
from helpers_passages import PASSAGES, QUESTION, RESERVED


class Walk:
    """One sequence and a description of what it must be: ids, passages, sees_from."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.engine = open_engine(TinyLlama(num_layers=1), compute="int8")
        self.head = random_ids(37, seed=3)
        self.pool = []
        sequence = self.open([*self.head, *random_ids(5)])
        self.pool = [sequence.encode_passage(ids) for ids in PASSAGES]
        self.pairs = [[sequence, [*self.head, *random_ids(5)], [], 0]]

    def open(self, ids):
        return self.engine.sequence(ids, num_head_tokens=37, num_reserved=RESERVED)

    def step(self):
        pair = self.pairs[self.rng.integers(len(self.pairs))]
        sequence, ids, passages, _ = pair
        kind = self.rng.choice(["extend", "decode", "truncate", "attach", "detach", "fork",
                                "rollback", "close"])
        if kind == "extend" and len(ids) < 200:
            more = random_ids(int(self.rng.integers(1, 70)), seed=int(self.rng.integers(4)))
            sequence.extend(more)
            ids += more
        elif kind == "decode" and len(ids) < 200:
            ids += sequence.decode(int(self.rng.integers(1, 12)), **DECODE).token_ids
        elif kind == "truncate":
            kept = int(self.rng.integers(37 if passages else 1, len(ids) + 1))
            if kept >= 37:
                sequence.truncate(kept)
                del ids[kept:]
        elif kind == "attach":
            chosen = self.rng.permutation(4)[: self.rng.integers(1, 4)].tolist()
            pair[3] = int(self.rng.integers(37, len(ids) + 1))
            pair[2] = chosen
            sequence.attach([self.pool[i] for i in chosen], from_token=pair[3])
        elif kind == "detach":
            sequence.detach()
            pair[2] = []
        elif kind == "fork" and len(self.pairs) < 4:
            self.pairs.append([sequence.fork(), [*ids], [*passages], pair[3]])
        elif kind == "rollback":
            checkpoint = sequence.checkpoint()
            sequence.detach()
            sequence.truncate(len(self.head))
            sequence.extend(random_ids(3))
            sequence.rollback(checkpoint)
        elif kind == "close" and len(self.pairs) > 1:
            sequence.close()
            self.pairs.remove(pair)

    def check(self):
        for sequence, ids, passages, sees_from in self.pairs:
            assert sequence.token_ids == ids
            fresh = open_engine(TinyLlama(num_layers=1), compute="int8")
            with fresh:
                seen = fresh.sequence(ids[:37], num_head_tokens=37, num_reserved=RESERVED)
                if passages:
                    # The sequence may have been cut before the first token that sees them.
                    seen.extend([*ids[37:], *random_ids(max(0, sees_from - len(ids)))])
                    seen.attach([seen.encode_passage(PASSAGES[i]) for i in passages],
                                from_token=sees_from)
                    seen.truncate(len(ids))
                else:
                    seen.extend(ids[37:])
                with sequence.fork() as fork:
                    assert fork.score(QUESTION[:9]).probs.tobytes() == \
                        seen.score(QUESTION[:9]).probs.tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_walks_equal_fresh_sequences(seed):
    walk = Walk(seed)
    for number in range(60):
        walk.step()
        walk.engine.check_integrity()
        if number % 12 == 11:
            walk.check()
