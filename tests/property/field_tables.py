"""Field tables, drawn."""

from __future__ import annotations

from hypothesis import strategies as st

from vouchmq.protocol.fields import (
    Field,
    Table,
)
from vouchmq.protocol.text import decode_text

keys = st.binary(max_size=20).map(decode_text)


def integers(kind: str, bits: int, *, signed: bool) -> st.SearchStrategy[Field]:
    """Fields of one integer type over its whole range."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high).map(lambda value: Field(kind, value))


scalars: st.SearchStrategy[Field] = st.one_of(
    st.booleans().map(lambda value: Field("t", value)),
    integers("b", 8, signed=True),
    integers("B", 8, signed=False),
    integers("s", 16, signed=True),
    integers("u", 16, signed=False),
    integers("I", 32, signed=True),
    integers("i", 32, signed=False),
    integers("l", 64, signed=True),
    integers("L", 64, signed=True),
    integers("T", 64, signed=False),
    st.floats(width=32, allow_nan=False).map(lambda value: Field("f", value)),
    st.floats(allow_nan=False).map(lambda value: Field("d", value)),
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1)).map(lambda value: Field("D", value)),
    st.binary(max_size=40).map(lambda value: Field("S", value)),
    st.binary(max_size=40).map(lambda value: Field("x", value)),
    st.just(Field("V", None)),
)


fields: st.SearchStrategy[Field] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: Field("A", tuple(items))),
        st.dictionaries(keys, inner, max_size=4).map(lambda table: Field("F", table)),
    ),
    max_leaves=12,
)


tables: st.SearchStrategy[Table] = st.dictionaries(keys, fields, max_size=6)
