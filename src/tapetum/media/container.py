"""A video file in memory, opened: its packets, and what a decoder makes of them.

The bytes never leave memory: a file goes straight to the one demuxer that its first bytes name, and nothing that it
refers to is opened, so there are no playlists, no other files and no network. Only common codecs are offered, and no
frame may be larger than a picture may. FFmpeg comes with PyAV, the extra `[video]`, which is imported when the first
video arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING

from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, TapetumError
from tapetum.media.claims import check_claims
from tapetum.media.deadlines import GivenUp
from tapetum.media.image import check_bytes, check_pixels, is_picture

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
_STILL_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1", b"avif", b"avis"))
_FORMAT_NAMES = ", ".join(dict.fromkeys(name for _, _, name, _ in _FORMATS))
_CODECS = (
    "h264,hevc,av1,libdav1d,libaom-av1,vp8,vp9,libvpx,libvpx-vp9,mpeg1video,mpeg2video,mpeg4,msmpeg4,msmpeg4v2,mjpeg,"
    "theora,libtheora,gif,prores,dnxhd,ffv1,huffyuv,rawvideo,flv,h263,wmv1,wmv2,wmv3,vc1,png,qtrle"
)


def demuxer_of(data: bytes) -> str | None:
    """What reads a file that begins like this; None for what is no video."""
    for offset, magic, _, demuxer in _FORMATS:
        if data[offset : offset + len(magic)] == magic and (demuxer != "mpegts" or data[:1] == magic):
            return demuxer
    return None


def is_video(data: bytes) -> bool:
    """Whether a file begins as a video and not as a picture; GIF, AVIF and HEIC are taken for pictures."""
    is_heif = data[4:8] == b"ftyp" and data[8:12] in _STILL_BRANDS
    return demuxer_of(data) is not None and not is_heif and not is_picture(data)


@contextmanager
def opened(data: bytes, config: MediaConfig) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its picture track; whatever goes wrong inside is a fault of the file."""
    check_bytes(len(data), config)
    demuxer = demuxer_of(data)
    if demuxer is None:
        what = "is in none of the formats that can be decoded" if data else "is empty"
        raise MediaError(
            f"video file {what}; send {_FORMAT_NAMES}, or the frames of the video as a list of pictures"
        )
    if demuxer == "mov":
        check_claims(data)
    # Decoders round sides up to whole blocks; what they give is measured again.
    limits = {"max_pixels": str(2 * config.max_pixels), "codec_whitelist": _CODECS}
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


def packets_of(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Packets that hold data. A file that breaks off ends there."""
    try:
        for packet in container.demux(stream):
            if packet.size:
                yield packet
    except _pyav().FFmpegError:
        return


def decoded(stream: VideoStream, packet: Packet[VideoStream] | None) -> list[VideoFrame]:
    """What comes out of the decoder; nothing where the packet is broken."""
    try:
        return stream.codec_context.decode(packet)
    except _pyav().FFmpegError:
        return []


def _picture_track(container: InputContainer) -> VideoStream:
    for stream in container.streams.video:
        if not stream.disposition & stream.disposition.attached_pic and stream.codec_context is not None:
            return stream
    raise MediaError(
        "video file has no stream of pictures that can be decoded; send a video, or a picture as such"
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
