"""The structures of the library, as Python fills them. Nothing but what lies where.

The build stamps a digest of this file into the library too, as functions.py says: a change of a structure is a change
here.
"""

from __future__ import annotations

import ctypes
from typing import Final

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

# the numbers of `Activation` of src/gemm.h
ACTIVATIONS: Final = ("none", "quick_gelu", "gelu", "silu_mul", "gelu_tanh", "gelu_tanh_mul")


class Weight(ctypes.Structure):
    """Weight of src/gemm.h."""

    _fields_ = (
        ("data", _P),
        ("bias", _P),
        ("outputs", _L),
        ("inputs", _L),
        ("dtype", _I),
        ("activation", _I),
    )


class Layer(ctypes.Structure):
    """DecoderLayer of src/decoder.h."""

    _fields_ = (
        ("norm1", _P),
        ("qkv", _P),
        ("q_norm", _P),
        ("k_norm", _P),
        ("out", _P),
        ("post1", _P),
        ("norm2", _P),
        ("gate_up", _P),
        ("down", _P),
        ("post2", _P),
        ("turns", _I),
        ("window", _I),
    )


class Turns(ctypes.Structure):
    """TurnTable of src/decoder.h."""

    _fields_ = (("axis", _P), ("frequency", _P), ("scale", _F))


class Decoder(ctypes.Structure):
    """Decoder of src/decoder.h."""

    _fields_ = (
        ("layers", _P),
        ("num_layers", _L),
        ("turns", _P),
        ("num_turns", _L),
        ("norm", _P),
        ("hidden", _L),
        ("heads", _I),
        ("kv_heads", _I),
        ("head_dim", _I),
        ("dtype", _I),
        ("has_wide_norms", _I),
        ("eps", _F),
        ("scale", _F),
    )


class Deep(ctypes.Structure):
    """DeepFeatures of src/decoder.h."""

    _fields_ = (("start", _L), ("end", _L), ("values", _P))


class Step(ctypes.Structure):
    """DecoderStep of src/decoder.h."""

    _fields_ = (
        ("x", _P),
        ("positions", _P),
        ("slots", _P),
        ("tokens", _L),
        ("caches", _P),
        ("num_blocks", _L),
        ("rows", _P),
        ("num_rows", _L),
        ("blocks", _P),
        ("reach", _P),
        ("sampled", _P),
        ("num_sampled", _L),
        ("deep", _P),
        ("num_deep", _L),
        ("levels", _L),
        ("workspace", _P),
        ("out", _P),
        ("block_size", _I),
    )
