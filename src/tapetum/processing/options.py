"""What a request may choose about its pictures and clips, and how far the operator lets it go.

Owns names, types and ranges of the options, the defaults that a server sets and the upper bounds that they are. What
an option means in pixels or frames is said where those are counted: `PixelBounds` in base.py, `FrameSampling` in
sampling.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, get_args

from tapetum.core.checks import plain
from tapetum.core.config import MediaConfig
from tapetum.core.errors import ConfigError, InvalidParameter
from tapetum.core.media import PARTS, MediaKind, Rung

Detail = Literal["low", "high", "auto"]
ALL_FRAMES = -1
MAX_OPTION_PIXELS = 2**31
_MAX_COUNT = 2**20
LOW_DETAIL_TOKENS = 256
LOW_DETAIL_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorOptions:
    """What a request may choose about one picture or clip; `None` takes the checkpoint's value.

    min_pixels, max_pixels bound the area of one frame after the resize. max_visual_tokens bounds the tokens of the
    whole item, exactly. detail `low` takes at most a quarter of the area that is allowed otherwise and at most 256
    visual tokens for a picture, or for each step of a clip's time axis; `high` and `auto` take what is allowed.

    Of a clip that is a file, fps is the rate at which frames are taken from it, between min_frames and max_frames;
    num_frames instead takes that many evenly, -1 all, and next to fps it is the most. Of a clip that is a list of
    frames, fps is the rate at which they were taken (only families with a clock look at it).

    least_rung is how far a server that degrades under load may go, text or not; high = not at all. near_duplicate lets
    a picture be taken for one that came before and differs from it by no more than the noise of a camera.
    """

    min_pixels: int | None = None
    max_pixels: int | None = None
    max_visual_tokens: int | None = None
    detail: Detail | None = None
    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    least_rung: Rung | None = None
    near_duplicate: bool | None = None

    def __post_init__(self) -> None:
        for name in ("min_pixels", "max_pixels", "max_visual_tokens"):
            _check_number(name, getattr(self, name), int, 1, MAX_OPTION_PIXELS)
        for name in ("min_frames", "max_frames"):
            _check_number(name, getattr(self, name), int, 1, _MAX_COUNT)
        _check_number("fps", self.fps, (int, float), 0.001, 1000)
        if self.num_frames != ALL_FRAMES or isinstance(self.num_frames, float):
            _check_number("num_frames", self.num_frames, int, 1, _MAX_COUNT)
        if self.detail is not None and self.detail not in get_args(Detail):
            raise InvalidParameter(f"detail is {self.detail!r}, must be low, high or auto", param="detail")
        if self.least_rung is not None and self.least_rung not in PARTS:
            raise InvalidParameter(
                f"least_rung is {self.least_rung!r}, must be {', '.join(PARTS)} or nothing",
                param="least_rung",
            )
        if self.near_duplicate not in (None, True, False):
            raise InvalidParameter(
                f"near_duplicate is {self.near_duplicate!r}, must be true or false", param="near_duplicate"
            )
        for kind in ("pixels", "frames"):
            _check_order(self, f"min_{kind}", f"max_{kind}")

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> ProcessorOptions:
        names = [item.name for item in fields(cls)]
        for name in options:
            if name not in names:
                raise InvalidParameter(
                    f"media option {name!r} is unknown; known are {', '.join(names)}", param=str(name)
                )
        return cls(**options)  # type: ignore[arg-type]  # __post_init__ checks the types


_SERVER_FLAGS = "--mm-processor-kwargs or --media-io-kwargs"
# What a request asks for, and the option of the server that it may not exceed.
_UPPER: tuple[tuple[str, str], ...] = (
    ("max_pixels", "max_pixels"),
    ("min_pixels", "max_pixels"),
    ("max_visual_tokens", "max_visual_tokens"),
    ("fps", "fps"),
    ("num_frames", "num_frames"),
    ("num_frames", "max_frames"),
    ("max_frames", "max_frames"),
    ("max_frames", "num_frames"),
    ("min_frames", "max_frames"),
    ("min_frames", "num_frames"),
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options that an operator set for all requests: used where a request is silent, and never exceeded."""

    of_kind: Mapping[MediaKind, ProcessorOptions] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: MediaConfig) -> ServerOptions:
        """Raises ConfigError for a name or value that no request could send either."""
        kinds: tuple[MediaKind, ...] = get_args(MediaKind)
        return cls({kind: _of_server(config, kind) for kind in kinds})

    def merged(self, kind: MediaKind, wanted: ProcessorOptions, *, is_file: bool) -> ProcessorOptions:
        """What holds for one item. Frames that come as a list have the rate they have: its fps is not bounded."""
        server = self.of_kind.get(kind, ProcessorOptions())
        if not is_file:
            server = replace(server, fps=None)
        for name, bound in _UPPER:
            _check_bound(name, getattr(wanted, name), bound, getattr(server, bound))
        given = {item.name: getattr(wanted, item.name) for item in fields(wanted)}
        given = {name: value for name, value in given.items() if value is not None}
        for low, high in (("min_pixels", "max_pixels"), ("min_frames", "max_frames")):
            lowest = getattr(server, low)
            if lowest is not None and given.get(high, lowest) < lowest:
                given.setdefault(low, None)  # the default moves out of the way of what is asked for
        return replace(server, **given)


def _of_server(config: MediaConfig, kind: MediaKind) -> ProcessorOptions:
    try:
        return ProcessorOptions.from_mapping(
            {**config.mm_processor_kwargs, **config.media_io_kwargs.get(kind, {})}
        )
    except InvalidParameter as error:
        raise ConfigError(f"{_SERVER_FLAGS}: {error.message}") from error


def _check_bound(name: str, value: float | None, bound: str, limit: float | None) -> None:
    if value is None or limit is None or limit == ALL_FRAMES:
        return
    if value > limit or value == ALL_FRAMES:
        what = f"limit {limit}" if name == bound else f"and the limit of {bound} is {limit}"
        raise InvalidParameter(
            f"{name} is {value}, {what} on this server; ask for less or raise {_SERVER_FLAGS}", param=name
        )


def _check_number(name: str, value: object, kind: type | tuple[type, ...], low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kind):
        wanted = "an integer" if kind is int else "a number"
        raise InvalidParameter(f"{name} is {value!r}, must be {wanted}", param=name)
    if not low <= value <= high:  # type: ignore[operator]  # also refuses NaN
        raise InvalidParameter(f"{name} is {value}, allowed are {plain(low)} to {plain(high)}", param=name)


def _check_order(options: ProcessorOptions, low: str, high: str) -> None:
    lowest, highest = getattr(options, low), getattr(options, high)
    if lowest and highest and lowest > highest:
        raise InvalidParameter(f"{low} is {lowest}, above {high} {highest}; lower it", param=low)
