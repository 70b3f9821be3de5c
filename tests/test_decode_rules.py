"""Where a decode ends, against the rules applied to the whole token stream afterwards."""

import functools

import numpy as np
import pytest
from helpers import TinyLlama, open_engine, random_ids

from flarecore.reference.sentence_boundary import first_sentence_end
from flarecore.sampling import SamplingParams

SPEC = TinyLlama(num_layers=1, context_length=1024, vocab_size=400)
EOS = {SPEC.vocab_size - 3, SPEC.vocab_size - 1}  # <|endoftext|>, <|im_end|>
# Enough full stops, spaces, capitals, line ends and ends of text to meet every rule often.
FREQUENT = {".": 6.0, " ": 5.0, "A": 4.0, "!": 4.0, "\n": 3.0, '"': 3.0, "1": 3.0}
BIAS = {ord(char): bonus for char, bonus in FREQUENT.items()}
BIAS |= {256 + i: bonus for i, bonus in enumerate((6.0, 5.0, 3.0, 4.0))}  # " A", ". ", "\n\n", '."'
BIAS |= {
    0xE3: 4.0,
    0x80: 4.0,
    0x82: 4.0,
    **dict.fromkeys(EOS, 3.0),
}  # bytes of characters, whole ones and cut ones
STOPS = [(), ("e.",), (". A", "!!"), ("\n",), ("zzzz", '."'), ("\u3002",)]


@functools.cache
def engine():
    opened = open_engine(SPEC)
    assert opened.tokenizer.eos_token_ids == EOS
    return opened


def stream(token_ids, sampling, pass_index, max_tokens):
    """Tokens and confidences one by one, end-of-text tokens among them but nothing after one."""
    sequence = engine().sequence(token_ids)
    tokens, probs = [], []
    while len(tokens) < max_tokens and not EOS & set(tokens):
        one = sequence.decode(
            1, sampling=sampling, until="eos", ignore_eos=True, pass_index=pass_index
        )
        tokens += one.token_ids
        probs += one.probs.tolist()
    sequence.close()
    return tokens, probs


def ends_inside_a_character(text):
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            return byte >= 0xC0 and back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False


def expected_end(tokens, until, stop, max_tokens):
    """(number of tokens, bytes of text, stop reason) by the rules, with all tokens in view."""
    table = list(engine().tokenizer.token_table)
    table[SPEC.vocab_size - 2] = b""  # <|im_start|> is control, not text
    saw_eos = bool(EOS & set(tokens))
    pieces = [table[token] for token in tokens if token not in EOS]
    ends = np.cumsum([0, *map(len, pieces)])
    text = b"".join(pieces)
    sentence = len(pieces)
    if until == "sentence" and text:
        end = first_sentence_end(text)
        if end < len(text):
            sentence = token_of(ends, end)
    # The stop string that is complete first counts, if it begins in what would be kept.
    found = [
        (begin + len(data), begin)
        for data in (string.encode() for string in stop)
        for begin in range(len(text))
        if text[begin : begin + len(data)] == data
    ]
    if found:
        complete = min(found)[0]
        begin = min(b for e, b in found if token_of(ends, e) == token_of(ends, complete))
        if begin < ends[sentence]:
            return token_of(ends, begin + 1) - (begin in ends), text[:begin], "stop_string"
        if begin == ends[sentence]:
            # Between both: it depends on which is known first, and nothing else does.
            return sentence, text[:begin], "sentence or stop_string"
    if sentence < len(pieces):
        return sentence, text[: ends[sentence]], "sentence"
    if saw_eos:
        return len(pieces), text, "eos"
    count = len(pieces)
    if until == "sentence":
        whole = (n for n in range(count, 0, -1) if not ends_inside_a_character(text[: ends[n]]))
        count = next(whole, count)
    return count, text[: ends[count]], "max_tokens"


def token_of(ends, size):
    """Number of tokens that hold the first `size` bytes."""
    return next(n for n in range(len(ends)) if ends[n] >= size)


@pytest.mark.parametrize("seed", range(24))
def test_random_decodes(seed):
    rng = np.random.default_rng(seed)
    reasons = {}
    for number in range(40):
        ids = random_ids(int(rng.integers(1, 50)), seed=int(rng.integers(1000)))
        sequence = engine().sequence(ids)
        sampling = SamplingParams(temperature=1.0, seed=int(rng.integers(100)), logit_bias=BIAS)
        for _ in range(5):  # the later ones begin with what the earlier ones looked at
            until = "sentence" if rng.random() < 0.8 else "eos"
            stop = STOPS[rng.integers(len(STOPS))]
            max_tokens = int(rng.choice([1, 2, 5, 12, 40]))
            pass_index = int(rng.random() < 0.2)
            tokens, probs = stream(ids, sampling, pass_index, max_tokens)
            guess = tuple(tokens[: rng.integers(0, 9)]) + tuple(random_ids(2, seed=number))
            decoded = sequence.decode(
                max_tokens, sampling=sampling, until=until, stop=stop, pass_index=pass_index,
                proposal=guess if rng.random() < 0.5 else (),
            )  # fmt: skip
            count, text, reason = expected_end(tokens, until, stop, max_tokens)
            case = f"{tokens} until={until} stop={stop} max_tokens={max_tokens}"
            assert decoded.stop_reason in reason.split(" or "), case
            assert decoded.text_bytes == text, case
            assert list(decoded.token_ids) == tokens[:count], case
            assert decoded.probs.tolist() == probs[:count], case
            if reason == "eos":
                assert decoded.eos_prob == pytest.approx(probs[-1], abs=0), case
            else:
                assert decoded.eos_prob is None, case
            ids = ids + tokens[:count]
            assert sequence.token_ids == ids
            reasons[decoded.stop_reason] = reasons.get(decoded.stop_reason, 0) + 1
        sequence.close()
    engine().check_integrity()
    assert len(reasons) == 4 and min(reasons.values()) >= 4, reasons
