"""The logger of the package; its level comes from MXREC_LOG_LEVEL (default INFO)."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("mx_rec")
logger.setLevel(os.environ.get("MXREC_LOG_LEVEL", "INFO").upper())
