"""From the bytes of a video file to some of its frames: upright, RGB, uint8.

`read_header` walks through the file without decoding more than one frame: how many frames there are, when each is
shown and where a decoder can start. `read_frames` then decodes what the wanted frames need and nothing else: from the
keyframe before each to the frame itself.

The bytes never leave memory: a file goes straight to the one demuxer that its first bytes name, and nothing that it
refers to is opened, so there are no playlists, no other files and no network. FFmpeg comes with PyAV, the extra
`[video]`, which is imported when the first video arrives.

A frame that cannot be decoded is replaced by the one that a player would go on showing, the frame before it; where
more than half of the wanted frames are like that, the file is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaTooLarge, TapetumError
from tapetum.media.deadlines import GivenUp, GoOn
from tapetum.media.image import check_bytes, check_pixels, to_rgb
from tapetum.processing.sampling import shown_at, spread

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

# first bytes (after skipping `offset`), name in messages, demuxer
_FORMATS: tuple[tuple[int, bytes, str, str], ...] = (
    (4, b"ftyp", "MP4", "mov"),
    (4, b"moov", "MP4", "mov"),
    (4, b"mdat", "MP4", "mov"),
    (4, b"wide", "MP4", "mov"),
    (4, b"free", "MP4", "mov"),
    (0, b"\x1aE\xdf\xa3", "WebM", "matroska"),
    (8, b"AVI ", "AVI", "avi"),
    (0, b"GIF87a", "GIF", "gif"),
    (0, b"GIF89a", "GIF", "gif"),
    (0, b"FLV\x01", "FLV", "flv"),
    (0, b"OggS", "Ogg", "ogg"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "WMV", "asf"),
    (0, b"\x00\x00\x01\xba", "MPEG", "mpeg"),
    (188, b"G", "MPEG-TS", "mpegts"),
)
_FORMAT_NAMES = ", ".join(dict.fromkeys(name for _, _, name, _ in _FORMATS))
_CODECS = (
    "h264,hevc,av1,libdav1d,libaom-av1,vp8,vp9,libvpx,libvpx-vp9,mpeg1video,mpeg2video,mpeg4,msmpeg4,msmpeg4v2,mjpeg,"
    "theora,libtheora,gif,prores,dnxhd,ffv1,huffyuv,rawvideo,flv,h263,wmv1,wmv2,wmv3,vc1,png,qtrle"
)
MAX_PACKETS = 2**20
MAX_SECONDS = 86_400.0
_FALLBACK_RATE = Fraction(25)  # FFmpeg's own where a file says nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoHeader:
    """What a file holds, in ticks of its own clock. Packets are in the order of decoding, frames in that of showing."""

    size: tuple[int, int]  # upright width and height
    times: tuple[int, ...]  # when each frame is shown, ascending
    end: int  # when the last frame has been shown
    seconds: float
    packets: tuple[int, ...] = ()  # which packet holds each frame; none where packets do not tell their times
    keys: tuple[int, ...] = ()  # packets at which a decoder can start

    @property
    def num_frames(self) -> int:
        return len(self.times)

    def choose(self, count: int) -> list[int]:
        """The numbers of `count` frames, evenly in time."""
        mean = (self.end - self.times[0]) / self.num_frames
        slack = max(1.0, mean / 20)  # a clock of whole ticks cannot keep every rate
        is_steady = all(abs(time - self.times[0] - mean * i) <= slack for i, time in enumerate(self.times))
        return spread(self.num_frames, count) if is_steady else shown_at(self.times, self.end, count)

    def start_for(self, number: int) -> int:
        """The packet at which a decoder must start for a frame."""
        if not self.packets:
            return 0
        packet = self.packets[number]
        before = bisect_right(self.keys, packet)
        if before and self._is_shown_before(number, self.keys[before - 1]):
            before -= 1  # it refers to what came before the keyframe that precedes it in the file
        return self.keys[before - 1] if before else 0

    def _is_shown_before(self, number: int, key: int) -> bool:
        return key in self.packets[number + 1 : number + 1 + _MAX_REORDER]


_MAX_REORDER = 64  # frames by which the order of decoding may differ from that of showing


def read_header(data: bytes, config: MediaConfig, go_on: GoOn) -> VideoHeader:
    """Raises MediaError for a file without a frame that can be decoded."""
    with _opened(data, config) as (container, stream):
        size = None
        index = _Index()
        for packet in _packets(container, stream):
            go_on()
            index.add(packet)
            if size is None and (frames := _decoded(stream, packet)):
                size = _upright(frames[0], config).size
        if size is None and (frames := _decoded(stream, None)):
            size = _upright(frames[0], config).size
        if size is None:
            raise MediaError("video holds no frame that can be decoded; encode it again")
        return index.header(stream, size)


def read_frames(
    data: bytes, header: VideoHeader, wanted: Sequence[int], config: MediaConfig, go_on: GoOn
) -> Iterator[Image.Image]:
    """The frames of those numbers, which ascend; one that is wanted several times comes several times."""
    left = deque(wanted)
    previous: VideoFrame | None = None
    num_early = num_missed = 0  # wanted frames before the first that can be decoded, and all that cannot
    with _opened(data, config) as (container, stream):
        for number, frame in _numbered(container, stream, header, left, go_on):
            while left and left[0] < number:
                left.popleft()
                num_missed += 1
                if previous is None:
                    num_early += 1
                else:
                    yield _upright(previous, config)
            if num_early or (left and left[0] == number):
                picture = _upright(frame, config)
                yield from [picture] * num_early
                num_early = 0
                while left and left[0] == number:
                    left.popleft()
                    yield picture
            previous = frame
        num_missed += len(left)
        if previous is None or num_missed * 2 > len(wanted):
            raise MediaError(
                f"{num_missed} of {len(wanted)} frames of the video cannot be decoded; encode it again"
            )
        yield from [_upright(previous, config)] * len(left)


class _Index:
    """What the packets of a file tell, one after the other."""

    def __init__(self) -> None:
        self._num_packets = self._num_timeless = 0
        self._shown: list[tuple[int, int]] = []  # time and packet
        self._keys: list[int] = []
        self._end = 0

    def add(self, packet: Packet[VideoStream]) -> None:
        number = self._num_packets
        if number == MAX_PACKETS:
            raise MediaTooLarge(f"video has more than {MAX_PACKETS} frames, the limit; send a shorter one")
        self._num_packets += 1
        if packet.is_keyframe:
            self._keys.append(number)
        if packet.is_discard:  # needed by others, and not shown itself
            return
        if packet.pts is None:
            self._num_timeless += 1
            return
        self._shown.append((packet.pts, number))
        self._end = max(self._end, packet.pts + (packet.duration or 0))

    def header(self, stream: VideoStream, size: tuple[int, int]) -> VideoHeader:
        rate = stream.average_rate or _FALLBACK_RATE
        tick = stream.time_base or 1 / rate
        times, packets = zip(*sorted(self._shown), strict=True) if self._shown else ((), ())
        if self._num_timeless or not times or len(set(times)) < len(times):
            total = self._num_timeless + len(times) or 1
            return VideoHeader(
                size=size, times=tuple(range(total)), end=total, seconds=_checked(total / rate)
            )
        end = self._end
        if end <= times[-1]:  # the last frame does not say how long it is shown
            mean = (times[-1] - times[0]) // (len(times) - 1) if len(times) > 1 else int(1 / rate / tick)
            end = times[-1] + max(1, mean)
        seconds = _checked((end - times[0]) * tick)
        return VideoHeader(
            size=size, times=times, end=end, seconds=seconds, packets=packets, keys=tuple(self._keys)
        )


def _checked(length: Fraction) -> float:
    seconds = float(length)
    if not 0 < seconds <= MAX_SECONDS:
        raise MediaError(f"video lasts {seconds:g} s, allowed are up to {MAX_SECONDS:g} s; send a part of it")
    return seconds


def _numbered(
    container: InputContainer, stream: VideoStream, header: VideoHeader, left: deque[int], go_on: GoOn
) -> Iterator[tuple[int, VideoFrame]]:
    """Frames with their numbers, ascending, as long as the caller has `left` any to want. Skips what none needs."""
    number, target, start = -1, -1, 0
    is_fed = True
    for index, packet in enumerate(_packets(container, stream)):
        go_on()
        if not left:
            return
        if left[0] != target:
            target, start = left[0], header.start_for(left[0])
        if index < start:
            is_fed = False
            continue
        if not is_fed:
            stream.codec_context.flush_buffers()
            is_fed = True
        for frame in _decoded(stream, packet):
            number = _number(frame, header, number)
            yield number, frame
    for frame in _decoded(stream, None):
        number = _number(frame, header, number)
        yield number, frame


def _number(frame: VideoFrame, header: VideoHeader, previous: int) -> int:
    if frame.pts is None or not header.packets:
        return previous + 1
    return max(previous, bisect_right(header.times, frame.pts) - 1)


def _packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Packets that hold data. A file that breaks off ends there."""
    try:
        for packet in container.demux(stream):
            if packet.size:
                yield packet
    except _pyav().FFmpegError:
        return


def _decoded(stream: VideoStream, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
    """What comes out of the decoder; nothing where the packet is broken."""
    try:
        return stream.codec_context.decode(packet)
    except _pyav().FFmpegError:
        return []


def _upright(frame: VideoFrame, config: MediaConfig) -> Image.Image:
    check_pixels((frame.width, frame.height), config)
    has_alpha = any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(format="rgba" if has_alpha else "rgb24")
    turned = np.rot90(pixels, round(frame.rotation / 90) % 4)
    return to_rgb(Image.fromarray(np.ascontiguousarray(turned)), config)


@contextmanager
def _opened(data: bytes, config: MediaConfig) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its picture track; whatever goes wrong inside is a fault of the file."""
    check_bytes(len(data), config)
    demuxer = _demuxer(data)
    limits = {"max_pixels": str(config.max_pixels), "codec_whitelist": _CODECS}
    options = {**limits, "format_whitelist": demuxer, "protocol_whitelist": "none"}
    av = _pyav()
    try:
        with av.open(BytesIO(data), format=demuxer, options=options, metadata_errors="ignore") as container:
            stream = _picture_track(container)
            check_pixels((stream.width, stream.height), config)
            stream.codec_context.options = limits
            stream.codec_context.thread_count = 1  # the workers are threads enough
            yield container, stream
    except (TapetumError, GivenUp):
        raise
    except Exception as error:  # a decoder of hostile bytes may raise anything
        raise MediaError(f"video cannot be decoded: {type(error).__name__}: {error}"[:200]) from error


def _picture_track(container: InputContainer) -> VideoStream:
    for stream in container.streams.video:
        if not stream.disposition & stream.disposition.attached_pic and stream.codec_context is not None:
            return stream
    raise MediaError(
        "video file has no stream of pictures that can be decoded; send a video, or a picture as such"
    )


def _demuxer(data: bytes) -> str:
    for offset, magic, _, demuxer in _FORMATS:
        if data[offset : offset + len(magic)] == magic and (demuxer != "mpegts" or data[:1] == magic):
            return demuxer
    what = "is in none of the formats that can be decoded" if data else "is empty"
    raise MediaError(
        f"video file {what}; send {_FORMAT_NAMES}, or the frames of the video as a list of pictures"
    )


def _pyav() -> ModuleType:
    try:
        import av
    except ImportError as error:
        raise MediaError(
            "video files are not supported by this server: PyAV is missing; install tapetum[video], "
            "or send the frames as a list of pictures"
        ) from error
    return av
