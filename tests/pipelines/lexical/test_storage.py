import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from soundingline.pipelines.lexical.storage import DECODED_LENGTHS, encode_lengths


def byte4(length):
    """Lucene's SmallFloat.intToByte4, bit by bit as its source describes it."""

    def long_to_int4(value):
        bits = value.bit_length()
        if bits < 4:
            return value
        shift = bits - 4
        return ((value >> shift) & 0x07) | ((shift + 1) << 3)

    free = 255 - long_to_int4(2**31 - 1)
    return length if length < free else free + long_to_int4(length - free)


def test_the_largest_length_has_the_last_code():
    assert byte4(2**31 - 1) == 255
    assert encode_lengths(np.array([2**31 - 1]))[0] == 255


def test_lengths_to_39_are_exact_and_then_every_eight_codes_double_the_step():
    assert DECODED_LENGTHS[:40].tolist() == list(range(40))
    assert DECODED_LENGTHS[40:58].tolist() == [*range(40, 56, 2), *range(56, 88, 4), 88, 96]


@given(st.integers(0, 2**31 - 1))
def test_codes_are_those_of_lucene(length):
    assert encode_lengths(np.array([length]))[0] == byte4(length)


def test_every_code_decodes_to_a_length_of_that_code():
    assert [byte4(int(length)) for length in DECODED_LENGTHS] == list(range(256))
