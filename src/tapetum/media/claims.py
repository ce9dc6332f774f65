"""How many samples an MP4 or MOV file says it has, before FFmpeg believes it.

FFmpeg makes an entry for every sample as it opens a file, and nothing can stop it there: a file of some bytes may claim
billions. Owns the counting, and that a header which has to be unpacked first is refused. The search is for the names
of boxes wherever they stand, since FFmpeg finds them anywhere too; only the media data itself is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tapetum.core.errors import MediaError, MediaTooLarge

MAX_SAMPLES = 2**22  # of all tracks: ten hours at 30 frames a second, with sound
_SAMPLES_OF_SOUND = 1024  # that FFmpeg makes one entry for, where they are not packed
_PICTURES = (b"vide", b"subp", b"clcp")  # kinds of tracks that it takes for no sound, whatever else they say


def check_claims(data: bytes) -> None:
    """Raises MediaTooLarge and MediaError."""
    total = 0
    for start, end in _headers(data):
        if data.find(b"cmov", start, end) >= 0 and data.find(b"cmvd", start, end) >= 0:
            raise MediaError("video has a compressed header, which is not supported; save it again")
        marks = [start, *_found(data, b"trak", start, end), end]
        total += sum(_samples(data, first, last) for first, last in pairwise(marks))
        total += sum(_run(data, place) for place in _found(data, b"trun", start, end))
    if total > MAX_SAMPLES:
        raise MediaTooLarge(
            f"video has {total} samples by its header, limit {MAX_SAMPLES}; send a part of it, or fewer tracks"
        )


def _headers(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each box of the file begins and ends, but for those that hold the media data."""
    start = 0
    while start + 8 <= len(data):
        size, kind = _number(data, start), data[start + 4 : start + 8]
        if size == 1:
            size = int.from_bytes(data[start + 8 : start + 16], "big")
        end = min(start + size, len(data)) if size >= 8 else len(data)
        if kind != b"mdat":
            yield start, end
        start = end


def _samples(data: bytes, start: int, end: int) -> int:
    """Entries for one track."""
    if _is_unpacked_sound(data, start, end):
        tables = [*_found(data, b"stco", start, end), *_found(data, b"co64", start, end)]
        chunks = max((_number(data, place + 8) for place in tables), default=0)
        return chunks * _largest_chunk(data, start, end) // _SAMPLES_OF_SOUND
    tables = [*_found(data, b"stsz", start, end), *_found(data, b"stz2", start, end)]
    return sum(_number(data, place + 12) for place in tables)


def _is_unpacked_sound(data: bytes, start: int, end: int) -> bool:
    """Sound of one tick a sample, as FFmpeg knows it: its samples are too many for an entry each."""
    kinds = [data[place + 12 : place + 16] for place in _found(data, b"hdlr", start, end)]
    durations = [data[place + 8 : place + 20] for place in _found(data, b"stts", start, end)]
    is_even = len(durations) == 1 and durations[0][:4] == durations[0][8:] == b"\0\0\0\1"
    is_shifted = data.find(b"ctts", start, end) >= 0  # which makes it uneven
    return b"soun" in kinds and is_even and not is_shifted and not any(kind in _PICTURES for kind in kinds)


def _largest_chunk(data: bytes, start: int, end: int) -> int:
    largest = 0
    for place in _found(data, b"stsc", start, end):
        count = min(_number(data, place + 8), (end - place) // 12)
        largest = max([largest, *(_number(data, place + 16 + 12 * index) for index in range(count))])
    return largest


def _run(data: bytes, place: int) -> int:
    """Samples of a run in a fragment that say nothing of their own; others are as many as there are bytes for."""
    return 0 if _number(data, place + 4) & 0xF00 else _number(data, place + 8)


def _found(data: bytes, name: bytes, start: int, end: int) -> Iterator[int]:
    """Where boxes of a name stand; the name is the first of their bytes here."""
    place = data.find(name, start, end)
    while place >= 0:
        yield place
        place = data.find(name, place + 4, end)


def _number(data: bytes, place: int) -> int:
    return int.from_bytes(data[place : place + 4], "big")
