"""What MP4 files say they hold: many samples are refused before FFmpeg makes an entry for each."""

from __future__ import annotations

import struct

import pytest

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaTooLarge
from tapetum.media.claims import MAX_SAMPLES, check_claims
from tapetum.media.video import read_header
from tests.pure.clips import encoded

MANY = 80_000_000


def box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), name) + body


def table(name: bytes, *numbers: int) -> bytes:
    return box(name, struct.pack(f">I{len(numbers)}I", 0, *numbers))


def track(
    kind: bytes,
    num_samples: int,
    *,
    size: int = 4,
    duration: int = 1,
    chunks: int = 10,
    per_chunk: int = 1000,
) -> bytes:
    return box(
        b"trak",
        box(b"hdlr", bytes(8), kind, bytes(12)),
        table(b"stsz", size, num_samples),
        table(b"stts", 1, num_samples, duration),
        table(b"stsc", 1, 1, per_chunk, 1),
        table(b"stco", chunks, *range(chunks)),
    )


def file(*parts: bytes) -> bytes:
    return box(b"ftyp", b"isom") + box(b"moov", *parts)


REFUSED = {
    "frames": file(track(b"vide", MANY)),
    "frames, each with its size": file(track(b"vide", MANY, size=0)),
    "packed sound": file(track(b"soun", MANY, duration=1024)),
    "sound that calls itself pictures too": file(track(b"soun", MANY) + box(b"hdlr", bytes(8), b"vide")),
    "sound with two clocks": file(track(b"soun", MANY), table(b"stts", 1, 5, 7)),
    "sound that is shifted": file(track(b"soun", MANY), table(b"ctts", 1, 5, 7)),
    "unpacked sound in huge chunks": file(track(b"soun", 5, per_chunk=2**31 - 1)),
    "many tracks": file(*[track(b"vide", MAX_SAMPLES // 4)] * 5),
    "small fields": file(track(b"vide", 1), box(b"stz2", struct.pack(">III", 0, 4, MANY))),
    "a fragment": file() + box(b"moof", box(b"traf", table(b"trun", MANY))),
    "in the wrong place": file(track(b"vide", 1), box(b"udta", table(b"stsz", 1, MANY))),
    "a box longer than the file": file() + struct.pack(">I4s", 2**31, b"moov") + table(b"stsz", 1, MANY),
    "behind the data": box(b"mdat", bytes(100)) + file(track(b"vide", MANY)),
    "a box of 64 bits": struct.pack(">I4sQ", 1, b"mdat", 24) + bytes(8) + file(track(b"vide", MANY)),
}
TAKEN = {
    "an hour of frames": file(track(b"vide", 30 * 3600)),
    "an hour of unpacked sound": file(track(b"soun", 48_000 * 3600, per_chunk=24_000, chunks=7200)),
    "names within the data": file(track(b"vide", 9)) + box(b"mdat", table(b"stsz", 1, MANY), b"cmovcmvd"),
    "names within a title": file(track(b"vide", 9), box(b"udta", b"an elephant's trunk and how it moves")),
    "runs that list their samples": file() + box(b"moof", box(b"trun", struct.pack(">II", 0xF01, MANY))),
    "nothing": b"",
}


@pytest.mark.parametrize("name", REFUSED)
def test_claims_of_many_samples_are_refused(name):
    with pytest.raises(MediaTooLarge, match=f"samples by its header, limit {MAX_SAMPLES}"):
        check_claims(REFUSED[name])


@pytest.mark.parametrize("name", TAKEN)
def test_what_real_files_say_is_taken(name):
    check_claims(TAKEN[name])


def test_a_header_that_would_have_to_be_unpacked_is_refused():
    with pytest.raises(MediaError, match="compressed header"):
        check_claims(file(box(b"cmov", box(b"dcom", b"zlib"), box(b"cmvd", bytes(9)))))


def test_a_real_file_with_a_false_number_is_refused_as_it_is_opened():
    data = encoded(5)
    place = data.index(b"stsz") + 8
    claimed = data[:place] + struct.pack(">II", 1, MANY) + data[place + 8 :]
    with pytest.raises(MediaTooLarge, match=f"video has {MANY} samples"):
        read_header(claimed, MediaConfig(), lambda: None)
    assert read_header(data, MediaConfig(), lambda: None).num_frames == 5
