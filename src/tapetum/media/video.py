"""From the bytes of a video file to some of its frames: upright, RGB, uint8.

`read_header` walks through the file without decoding more than one frame: how many frames there are, when each is
shown and where a decoder can start. `read_frames` then decodes what the wanted frames need and nothing else: from the
keyframe before each to the frame itself.

A frame that cannot be decoded is replaced by the one that a player would go on showing, the frame before it; where
more than half of the wanted frames are like that, the file is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaTooLarge
from tapetum.media.container import decoded, opened, packets_of
from tapetum.media.deadlines import GoOn
from tapetum.media.image import check_pixels, to_rgb
from tapetum.processing.sampling import FrameSampling

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

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

    def choose(self, count: int, sampling: FrameSampling) -> list[int]:
        """The numbers of `count` frames, evenly in time."""
        mean = (self.end - self.times[0]) / self.num_frames
        slack = max(1.0, mean / 20)  # a clock of whole ticks cannot keep every rate
        is_steady = all(abs(time - self.times[0] - mean * i) <= slack for i, time in enumerate(self.times))
        if is_steady:
            return sampling.spread(self.num_frames, count, self.seconds)
        return sampling.shown_at(self.times, self.end, count)

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
    with opened(data, config) as (container, stream):
        size = None
        index = _Index()
        for packet in packets_of(container, stream):
            go_on()
            index.add(packet)
            if size is None and (frames := decoded(stream, packet)):
                size = _upright(frames[0], config).size
        if size is None and (frames := decoded(stream, None)):
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
    with opened(data, config) as (container, stream):
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
        # AVI stores no times: FFmpeg counts packets, which is the order of showing only where all are keyframes.
        is_counted = stream.container.format.name == "avi" and len(self._keys) < self._num_packets
        if is_counted or self._num_timeless or not times or len(set(times)) < len(times):
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
    for index, packet in enumerate(packets_of(container, stream)):
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
        for frame in decoded(stream, packet):
            number = _number(frame, header, number)
            yield number, frame
    for frame in decoded(stream, None):
        number = _number(frame, header, number)
        yield number, frame


def _number(frame: VideoFrame, header: VideoHeader, previous: int) -> int:
    if frame.pts is None or not header.packets:
        return previous + 1
    return max(previous, bisect_right(header.times, frame.pts) - 1)


def _upright(frame: VideoFrame, config: MediaConfig) -> Image.Image:
    check_pixels((frame.width, frame.height), config)
    has_alpha = any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(format="rgba" if has_alpha else "rgb24")
    turned = np.rot90(pixels, round(frame.rotation / 90) % 4)
    return to_rgb(Image.fromarray(np.ascontiguousarray(turned)), config)
