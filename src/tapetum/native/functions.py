"""The C functions of the library, as Python calls them. Nothing but the table.

The build stamps a digest of this file and of structures.py into the library (CMakeLists.txt), and `library.py` compares
it: a library that was built for others is not loaded. So a change of a C function is a change here.
"""

from __future__ import annotations

import ctypes

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

# name -> (result, arguments); pointers travel as integers
FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "tpt_built_from": (ctypes.c_char_p, ()),
    "tpt_isa": (ctypes.c_char_p, ()),
    "tpt_use_isa": (_I, (ctypes.c_char_p,)),
    "tpt_num_threads": (_I, ()),
    "tpt_set_num_threads": (None, (_I,)),
    "tpt_narrow": (None, (_P, _P, _L)),
    "tpt_rms_norm": (None, (_I, _P, _P, _I, _F, _L, _L, _P)),
    "tpt_layer_norm": (None, (_I, _P, _P, _P, _F, _L, _L, _P)),
    "tpt_rotate": (None, (_I, _L, _L, _L, _L, _P, _P, _P, _P)),
    "tpt_resizer_new": (_P, (_L, _L, _L, _L, _I, _L, _L, _L)),
    "tpt_resizer_feed": (_L, (_P, _P, _L, _I, _L, _P)),
    "tpt_resizer_free": (None, (_P,)),
    "tpt_decoder_workspace": (_L, (_P, _L)),
    "tpt_run_decoder": (
        None,
        (_P, _P),
    ),  # structures of ops/native_decoder.py: Decoder with tables of turns, Step
    "tpt_turns": (_I, (_I, _L, _L, _P, _P, _P, _P, _P)),
    "tpt_write_kv": (None, (_I, _P, _L, _I, _I, _I, _P, _L, _P, _L, _P, _L)),
    "tpt_paged_attention": (None, (_I, _P, _L, _I, _I, _I, _P, _L, _P, _I, _F, _P, _L, _P, _L, _P, _I)),
    "tpt_segment_keys_size": (_L, (_P, _L, _I, _I)),
    "tpt_segment_keys": (None, (_I, _P, _L, _I, _I, _P, _L, _P, _L, _P)),
    "tpt_segment_attention": (None, (_I, _P, _L, _I, _I, _P, _P, _L, _L, _L, _F, _P, _L)),
    "tpt_packed_bytes": (_L, (_L, _L, _I, _I)),
    "tpt_pack": (None, (_P, _L, _L, _L, _I, _I, _P)),
    "tpt_linear": (None, (_P, _P, _L, _L, _P, _L, _P, _L)),
    "tpt_head": (None, (_P, _P, _L, _L, _I, _P, _L, _L, _P, _P)),
    "tpt_read": (ctypes.c_uint64, (_P, _L)),
}
