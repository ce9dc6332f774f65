"""Which frames of a video file a model sees: how many, and which.

The count is that of transformers' `Qwen2VLVideoProcessor.sample_frames`: a rate, at least and at most so many, in
multiples of the frames that share a patch. It departs where all frames of a short clip are wanted and are no such
multiple: none is left out then, and the last is repeated as in any clip of an odd length. Qwen3-VL counts in ones and
takes the last frame too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tapetum.core.errors import CheckpointError
from tapetum.processing.options import ALL_FRAMES, ProcessorOptions

DEFAULT_FPS = 2.0  # the rate Qwen's families were trained at


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSampling:
    """The numbers of one checkpoint; options of a request go before them."""

    fps: float = DEFAULT_FPS  # also of frames that come as a list and without a rate
    num_frames: int | None = None  # so many whatever the length, instead of a rate
    min_frames: int = 4
    max_frames: int = 768
    multiple: int = 2  # frames that share a patch
    has_last: bool = False  # the last frame is always one of them
    is_middle: bool = False  # of equal parts of a clip the middle is taken, not the beginning

    def __post_init__(self) -> None:
        if not self.fps > 0:
            raise CheckpointError(
                f"the checkpoint's processor files take {self.fps:g} frames a second of a clip, must be above 0; "
                "correct fps there"
            )

    def count(self, total: int, seconds: float, options: ProcessorOptions) -> int:
        """How many of `total` frames that last `seconds`."""
        num_frames = options.num_frames if options.fps or options.num_frames else self.num_frames
        if num_frames == ALL_FRAMES:
            wanted = float(total)
        elif num_frames and not options.fps:
            wanted = round(num_frames / self.multiple) * self.multiple or 1
        else:
            wanted = self.at_rate(seconds, options.fps or self.fps)
            wanted = max(wanted, options.min_frames or self.min_frames)
            wanted = min(wanted, num_frames or wanted)
        wanted = min(wanted, options.max_frames or self.max_frames)
        if wanted >= total:
            return total
        return int(wanted) // self.multiple * self.multiple or 1

    def at_rate(self, seconds: float, fps: float) -> float:
        """How many frames so many seconds would have."""
        return seconds * fps

    def spread(self, total: int, count: int, seconds: float | None = None) -> list[int]:
        """`count` of `total` frames, evenly from the first, to the last or to one step before the end; or the middles.

        `seconds` is how long a file lasts; for some families there is a bound beyond which they leave out its ends.
        As transformers computes it: numpy.linspace, or the float32 of torch.arange(shift, total, total / count).
        """
        if self.has_last:
            return [int(index) for index in np.linspace(0, total - 1, count).round()]
        part = total / count
        shift = part / 2 if self.is_middle else 0.0
        return [int(np.float32(shift + index * part)) for index in range(count)]

    def shown_at(self, times: Sequence[int], end: int, count: int) -> list[int]:
        """The frames that are shown at `count` evenly spaced times from the first frame to the last, or to `end`.

        `times` say when each frame is first shown, ascending, in the unit of `end`. A frame shown for long may come
        twice.
        """
        span, steps = (times[-1] - times[0], max(1, count - 1)) if self.has_last else (end - times[0], count)
        halves = range(self.is_middle, 2 * count, 2)  # of steps
        return [bisect_right(times, times[0] + half * span // (2 * steps)) - 1 for half in halves]
