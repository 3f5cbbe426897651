"""Nothing is looked up on the hub."""

import logging
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
logging.getLogger("httpx").setLevel(logging.WARNING)
