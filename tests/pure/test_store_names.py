"""What entries are called in stores: by everything that they depend on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tapetum.cache.names import alias_name, feature_name

Bytes = st.binary(max_size=40)


@given(Bytes, Bytes, Bytes, Bytes)
def test_names_are_those_of_their_fields(key: bytes, other_key: bytes, encoder: bytes, other_encoder: bytes):
    same = (key, encoder) == (other_key, other_encoder)
    assert (feature_name(key, encoder) == feature_name(other_key, other_encoder)) == same
    assert (alias_name(key, encoder) == alias_name(other_key, other_encoder)) == same
    assert feature_name(key, encoder) != alias_name(key, encoder)
    assert len(feature_name(key, encoder)) == 32


@given(st.binary(min_size=1, max_size=40), st.integers(0, 39))
def test_no_byte_moves_from_one_field_to_the_next(joined: bytes, at: int):
    at %= len(joined)
    assert feature_name(joined[:at], joined[at:]) != feature_name(joined[: at + 1], joined[at + 1 :])
