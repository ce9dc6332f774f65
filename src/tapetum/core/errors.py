"""One tree of exceptions for everything a user or the world can cause.

TapetumError                        code, HTTP status, retryable
├── RequestError            400     the client's fault
│   ├── InvalidParameter    400     a parameter out of range or of the wrong type
│   ├── PromptTooLong       400     more tokens than the context holds
│   ├── TemplateError       400     the chat template refused the messages
│   └── MediaError          400     a picture or clip that cannot be used
│       ├── MediaTooLarge   413     over a byte, pixel or count limit
│       ├── MediaForbidden  400     a reference that the policy does not allow
│       └── MediaTimeout    408     fetching or decoding took too long
├── CapacityError           503     the server's state, try again later (retryable)
│   └── Overloaded          429     the queue is full
│       └── DeadlineOutOfReach  the queue is too long for the deadline of the request
├── DeadlinePassed          408     the client's own timeout_s ran out
├── ConfigError             500     the operator's fault: a flag or a checkpoint
│   └── CheckpointError     500     files of a model that are missing or do not fit
└── EngineError             500     our fault; the request is lost, the engine goes on
    └── EngineDead          503     the engine loop has ended

A message names the value, the limit and the remedy.
"""

from __future__ import annotations


class TapetumError(Exception):
    """Base of all errors; `code` is a stable word for programs, `param` names the field at fault."""

    code = "internal_error"
    http_status = 500
    retryable = False

    def __init__(self, message: str, *, param: str | None = None, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.wait_s = wait_s  # after which to come back, where that is known


class RequestError(TapetumError):
    code = "invalid_request"
    http_status = 400


class InvalidParameter(RequestError):
    code = "invalid_parameter"


class PromptTooLong(RequestError):
    code = "context_length_exceeded"


class TemplateError(RequestError):
    code = "invalid_messages"


class MediaError(RequestError):
    code = "invalid_media"


class MediaTooLarge(MediaError):
    code = "media_too_large"
    http_status = 413


class MediaForbidden(MediaError):
    code = "media_forbidden"


class MediaTimeout(MediaError):
    code = "media_timeout"
    http_status = 408


class CapacityError(TapetumError):
    code = "capacity"
    http_status = 503
    retryable = True


class Overloaded(CapacityError):
    code = "overloaded"
    http_status = 429


class DeadlineOutOfReach(Overloaded):
    code = "deadline_out_of_reach"


class DeadlinePassed(TapetumError):
    code = "timeout"
    http_status = 408


class ConfigError(TapetumError):
    code = "invalid_configuration"


class CheckpointError(ConfigError):
    code = "invalid_checkpoint"


class EngineError(TapetumError):
    code = "engine_error"


class EngineDead(EngineError):
    code = "engine_dead"
    http_status = 503
    retryable = True
