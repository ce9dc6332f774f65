"""How the log looks: one JSON object per line, for people and for programs.

Owns the form of a line and what never gets into one: queries of URLs, which may carry signatures, and long runs of
base64. What is logged is decided where it happens.
"""

from __future__ import annotations

import json
import logging
import re
import time

_MAX_CHARACTERS = 8000  # of a text in a line, tracebacks too
_QUERY = re.compile(r"(\b[A-Za-z][\w+.-]{0,15}://[^\s?\"'<>]{0,300})\?[^\s\"'<>]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]{100,}")
_OWN_FIELDS = "fields"  # the attribute of a log record that holds what a line says beyond its message


def set_up_logging(level: str) -> None:
    """Lines of `level` and above to standard error; libraries speak up only when something is wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tapetum").setLevel(level.upper())


class JsonLines(logging.Formatter):
    """Time, level, logger and message, then the record's own fields, then an exception with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.gmtime(record.created)
        line: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_payload(record.getMessage()),
            **getattr(record, _OWN_FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = without_payload(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


def without_payload(text: str) -> str:
    """The text without queries of URLs and without runs that can only be data; of a very long one, both ends."""
    if len(text) > _MAX_CHARACTERS:
        half = _MAX_CHARACTERS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    text = _QUERY.sub(r"\1?…", text)
    return _BASE64.sub(lambda run: f"<{len(run[0])} characters>", text)
