"""Identity: any change of what the encoder sees changes the key, and fields cannot run into each other."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tapetum.core.media import Geometry
from tapetum.media.keys import _decoders, alias_key, digest, media_key
from tapetum.media.plan import Shot
from tapetum.media.source import VideoFile

PARAMETERS = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
GEOMETRY = Geometry(
    kind="video",
    original=(100, 50),
    used=(56, 28),
    frames=3,
    grid_thw=(2, 2, 4),
    num_tokens=4,
    segments=(8, 8),
    seconds_per_grid=1.0,
)
PATCHES = np.random.default_rng(1).integers(0, 256, (16, 1176), dtype=np.uint8)


def key(patches=PATCHES, geometry=GEOMETRY, parameters=PARAMETERS, tenant="t", processor="exact") -> bytes:
    return media_key(patches, geometry, parameters=parameters, tenant=tenant, processor=processor)


def test_same_content_same_key():
    assert len(key()) == 32
    assert key(patches=PATCHES.copy()) == key()
    assert key(patches=np.asfortranarray(PATCHES)) == key()
    # How the used size came about does not matter.
    assert key(geometry=replace(GEOMETRY, original=(1000, 500))) == key()


def test_keys_stay_what_they_are():
    patches = np.arange(588, dtype=np.uint16).astype(np.uint8).reshape(1, 588)
    assert key(patches).hex() == "b888bbbd8397b627df760c17aed25600a9702fb588a0f6ec532da4a016006a5a"


def flipped(index: int) -> np.ndarray:
    patches = PATCHES.copy()
    patches.reshape(-1)[index] ^= 1
    return patches


TILED = replace(GEOMETRY, tiles=(2, 1))
MUTATIONS = {
    "turned tiles": {"geometry": TILED},
    "shape behind the tiles": {"geometry": replace(TILED, original=(100, 40))},
    "times": {"geometry": replace(GEOMETRY, frame_times=(0.0, 0.5, 1.0))},
    "other times": {"geometry": replace(GEOMETRY, frame_times=(0.0, 0.5, 1.5))},
    "first pixel": {"patches": flipped(0)},
    "last pixel": {"patches": flipped(-1)},
    "kind": {"geometry": replace(GEOMETRY, kind="image")},
    "turned size": {"geometry": replace(GEOMETRY, used=(28, 56))},
    "width": {"geometry": replace(GEOMETRY, used=(84, 28))},
    "tiles": {"geometry": replace(GEOMETRY, tiles=(1, 2))},
    "height": {"geometry": replace(GEOMETRY, used=(56, 56))},
    "frames": {"geometry": replace(GEOMETRY, frames=4)},
    "seconds per grid": {"geometry": replace(GEOMETRY, seconds_per_grid=1.0000001)},
    "tenant": {"tenant": "u"},
    "no tenant": {"tenant": ""},
    "processor": {"processor": "fast"},
    **{name: {"parameters": {**PARAMETERS, name: 7}} for name in PARAMETERS},
}


def test_every_field_counts():
    keys = {name: key(**change) for name, change in MUTATIONS.items()}
    assert len({key(), *keys.values()}) == len(MUTATIONS) + 1


def test_parameters_are_told_apart_by_name():
    assert key(parameters={"patch_size": 2, "merge_size": 14}) != key(
        parameters={"patch_size": 14, "merge_size": 2}
    )
    assert key(parameters=dict(reversed(PARAMETERS.items()))) == key()


fields = st.lists(
    st.tuples(
        st.text("abc", max_size=3),
        st.one_of(st.binary(max_size=6), st.text(max_size=4), st.integers(-9, 9), st.floats(allow_nan=False)),
    ),
    max_size=4,
)


def canonical(pairs: list) -> list[tuple[str, bytes]]:
    """What the digest is meant to tell apart: names, and the bytes of values."""
    out = []
    for name, value in pairs:
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        elif isinstance(value, int):
            value = value.to_bytes(8, "big", signed=True)
        elif isinstance(value, float):
            value = np.array(value, ">f8").tobytes()
        out.append((name, value))
    return out


@given(fields, fields)
def test_unlike_fields_never_share_a_digest(one, other):
    assert (digest(one) == digest(other)) == (canonical(one) == canonical(other))


@given(st.lists(st.binary(max_size=5), min_size=2, max_size=5), st.integers(0, 4))
def test_bytes_cannot_move_over_a_boundary(values, at):
    """Same bytes in a row, cut elsewhere."""
    at %= len(values) - 1
    moved = list(values)
    moved[at], moved[at + 1] = moved[at] + moved[at + 1][:1], moved[at + 1][1:]
    same = moved == values
    assert (digest(("f", value) for value in values) == digest(("f", value) for value in moved)) == same


def test_a_name_is_not_a_value():
    assert digest([("ab", b"c")]) != digest([("a", b"bc")])
    assert digest([("a", b""), ("b", b"")]) != digest([("a", b"b")])


def alias(
    frames=(b"abc",),
    kind="image",
    tenant="t",
    file=None,
    indices=(),
    processor="exact",
    parameters=None,
    ground=(255, 255, 255),
    **changes,
) -> bytes:
    shot = Shot(kind=kind, size=(4, 2), num_frames=1, frames=tuple(frames), file=file, indices=indices)
    return alias_key(
        shot,
        replace(GEOMETRY, kind=kind, **changes),
        tenant=tenant,
        processor=processor,
        parameters=parameters,
        ground=ground,
    )


def test_aliases():
    grey = Image.new("RGB", (4, 2), (5, 5, 5))
    video = {"frames": (), "kind": "video"}
    keys = [
        alias(),
        alias([b"abd"]),
        alias([b"ab", b"c"]),
        alias([b"abc", b""]),
        alias([b"c", b"ab"]),
        alias(kind="video"),
        alias(tenant="u"),
        alias(processor="fast"),
        alias(parameters={"patch size": 14}),
        alias(parameters={"patch size": 16}),
        alias(parameters={"merge size": 14}),
        alias(ground=(0, 0, 0)),
        alias(used=(28, 56)),
        alias(frames=[b"abc"], kind="video", seconds_per_grid=0.5),
        alias([grey]),
        alias([grey.resize((2, 4))]),
        alias([grey.tobytes()]),
        alias(**video, file=VideoFile(b"abc"), indices=(0, 1)),
        alias(**video, file=VideoFile(b"abc"), indices=(0, 2)),
        alias(**video, file=VideoFile(b"abd"), indices=(0, 2)),
    ]
    assert len(set(keys)) == len(keys)
    assert alias([b"abc"]) == alias() and alias([grey.copy()]) == alias([grey])


def test_an_alias_does_not_outlive_the_decoders(monkeypatch):
    before = alias()
    monkeypatch.setattr("tapetum.media.keys._decoders", lambda: "pillow 0.0")
    assert alias() != before


@pytest.mark.parametrize("tenant", ["", "t", "ü", "\udcff"])
def test_any_tenant_name_works(tenant):
    assert key(tenant=tenant) == key(tenant=tenant)


def test_aliases_need_no_extras(monkeypatch):
    def version(package):
        if package == "av":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr("tapetum.media.keys.version", version)
    monkeypatch.setattr("tapetum.media.keys._decoders", _decoders.__wrapped__)
    assert len(alias()) == 32
