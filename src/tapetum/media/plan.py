"""From a reference to what it will be: read, its header looked at, its size for the model known. Nothing is decoded.

Owns the order before a decode: options first, since they cost nothing, then the bytes, then the header, then the
limits on what would come of it. Does not own how a reference is read (source.py) or a header (image.py, video.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image

from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError, MediaTooLarge
from tapetum.core.media import Degradation, Geometry, MediaItem, MediaKind
from tapetum.media.container import is_video
from tapetum.media.deadlines import GoOn
from tapetum.media.density import SIDE
from tapetum.media.document import Page, is_pdf
from tapetum.media.image import decode, read_size
from tapetum.media.source import Loaded, SourceReader, VideoFile, is_frame_list
from tapetum.media.video import VideoHeader, read_frames, read_header
from tapetum.processing.base import Processor
from tapetum.processing.options import ALL_FRAMES, ProcessorOptions, ServerOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shot:
    """The frames that were chosen of a reference, still as they came: one for a picture."""

    kind: MediaKind
    size: tuple[int, int]  # upright width and height of all frames
    num_frames: int
    frame_rate: float | None = None  # of the chosen frames, where it is known
    frames: tuple[Loaded, ...] = ()  # of a picture, or a clip that came as a list
    file: VideoFile | None = None
    header: VideoHeader | None = None  # of the file
    indices: tuple[int, ...] = ()  # of the frames that were chosen from the file

    @property
    def frame_times(self) -> tuple[float, ...]:
        """Seconds from the start at which each frame is shown, where the file tells."""
        if self.header is None:
            return ()
        start, end = self.header.times[0], self.header.end
        seconds = self.header.seconds / (end - start)
        return tuple((self.header.times[index] - start) * seconds for index in self.indices)

    @property
    def num_bytes(self) -> int:
        """Of the files, which are held in memory until they are decoded."""
        if self.file is not None:
            return len(self.file.data)
        return sum(len(frame) for frame in self.frames if isinstance(frame, bytes))

    @property
    def has_pages(self) -> bool:
        """Whether it is drawn by a process of its own, which may take its time."""
        return any(isinstance(frame, Page) for frame in self.frames)

    def pictures(self, config: MediaConfig, go_on: GoOn, used: tuple[int, int]) -> Iterator[Image.Image]:
        """Canonical pictures one by one, each decoded when it is asked for, to be scaled to the `used` size."""
        enough = used if config.mm_processor == "fast" else None
        if self.file is not None and self.header is not None:
            yield from read_frames(self.file.data, self.header, self.indices, config, go_on)
            return
        for frame in self.frames:
            go_on()
            if isinstance(frame, Page):
                yield frame.picture(used, go_on)
            else:
                yield frame if isinstance(frame, Image.Image) else decode(frame, config, go_on, enough)

    def glance(self, config: MediaConfig, go_on: GoOn) -> Image.Image:
        """The picture, or the first of the frames, decoded no larger than a look at it needs."""
        if self.file is not None:
            return next(self.pictures(config, go_on, self.size))
        width, height = self.size
        enough = (min(width, SIDE), min(height, SIDE))
        frame = self.frames[0]
        if isinstance(frame, Page):
            return frame.picture(enough, go_on)
        return frame if isinstance(frame, Image.Image) else decode(frame, config, go_on, enough)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaPlan:
    """One picture or clip that has been read: what the model will see of it, and whether it is there already."""

    geometry: Geometry
    item: MediaItem | None  # where it was made before and is still kept
    key: bytes | None  # the media key, where it was made before and that is remembered
    shot: Shot
    options: ProcessorOptions
    alias: bytes
    tenant: str
    deadline: float  # of reading and decoding together
    fetch_s: float
    degraded: Degradation | None = None


class Planner:
    """Reads references and their headers under one policy; safe to call from many threads."""

    def __init__(self, processor: Processor, config: MediaConfig) -> None:
        self._processor = processor
        self._config = config
        self._server = ServerOptions.from_config(config)
        self._reader = SourceReader(config)

    def options(self, part: MediaPart) -> ProcessorOptions:
        is_file = not is_frame_list(part.source)
        return self._server.merged(part.kind, ProcessorOptions.from_mapping(part.options), is_file=is_file)

    def shot(self, part: MediaPart, options: ProcessorOptions, go_on: GoOn) -> Shot:
        """Raises MediaError for what cannot be read, or whose header says that it will not do."""
        if part.kind == "image":
            picture = self._reader.read(part.source, is_trusted=part.is_trusted, go_on=go_on)
            if isinstance(picture, bytes) and is_video(picture):
                raise MediaError("the file is a video and no picture; send it as video_url")
            if isinstance(picture, bytes) and is_pdf(picture):
                raise MediaError(
                    "the file is a PDF document and no picture; send it as a part of type file with file_data"
                )
            return Shot(kind="image", size=self._size(picture, go_on), num_frames=1, frames=(picture,))
        clip = self._reader.read_clip(part.source, is_trusted=part.is_trusted, go_on=go_on)
        if isinstance(clip, VideoFile):
            return self._from_file(clip, options, go_on)
        return self._from_list(clip, options, go_on)

    def geometry(self, shot: Shot, options: ProcessorOptions) -> Geometry:
        """From the header alone, so that whatever is too large is refused before it is decoded."""
        geometry = self._processor.geometry(
            shot.kind,
            *shot.size,
            frames=shot.num_frames,
            frame_rate=shot.frame_rate,
            frame_times=shot.frame_times,
            options=options,
        )
        width, height = geometry.used
        if width * height * geometry.frames > self._config.max_pixels:
            raise MediaTooLarge(
                f"{shot.kind} would be scaled to {geometry.frames} x {width}x{height} pixels, limit "
                f"{self._config.max_pixels} together; lower its max_pixels or min_pixels, or send fewer frames"
            )
        return geometry

    def _from_list(self, frames: Sequence[Loaded], options: ProcessorOptions, go_on: GoOn) -> Shot:
        if not frames:
            raise MediaError("clip has no frames; send at least one")
        sizes = [self._size(frame, go_on) for frame in frames]
        for number, size in enumerate(sizes):
            if size != sizes[0]:
                raise MediaError(
                    f"frame {number} of the clip is {size[0]}x{size[1]}, frame 0 is {sizes[0][0]}x{sizes[0][1]}; "
                    "scale all frames to one size"
                )
        sampling = self._processor.sampling
        total = count = len(frames)
        wanted = options.num_frames or ALL_FRAMES
        if wanted != ALL_FRAMES or options.max_frames:
            every = ProcessorOptions(num_frames=wanted, max_frames=options.max_frames)
            count = sampling.count(total, 0.0, every)
        rate = (options.fps or sampling.fps) * count / total if count < total else None
        chosen = tuple(frames[index] for index in sampling.spread(total, count))
        return Shot(kind="video", size=sizes[0], num_frames=count, frame_rate=rate, frames=chosen)

    def _from_file(self, file: VideoFile, options: ProcessorOptions, go_on: GoOn) -> Shot:
        header = read_header(file.data, self._config, go_on)
        sampling = self._processor.sampling
        count = sampling.count(header.num_frames, header.seconds, options)
        if count > self._config.max_frames:
            raise MediaTooLarge(
                f"{count} frames would be taken from the video, limit {self._config.max_frames}; "
                "lower fps or num_frames"
            )
        return Shot(
            kind="video",
            size=header.size,
            num_frames=count,
            frame_rate=count / header.seconds,
            file=file,
            header=header,
            indices=tuple(header.choose(count, sampling)),
        )

    def _size(self, frame: Loaded, go_on: GoOn) -> tuple[int, int]:
        return frame.size if isinstance(frame, (Image.Image, Page)) else read_size(frame, self._config, go_on)
