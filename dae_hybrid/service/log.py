"""The structured log: one JSON object per line."""

from __future__ import annotations

import json
import logging
from typing import Any

LOG = logging.getLogger("dae_hybrid.service")


class JsonFormatter(logging.Formatter):
    """Records as lines of JSON."""

    FIELDS = ("request_id", "method", "path", "status", "milliseconds", "client", "job")

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
