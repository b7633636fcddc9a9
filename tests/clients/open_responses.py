"""The seven requests of Open Responses' compliance tests, in their words; answers are read by the types of its specification.

Run in the environment of the judges, with the address in ``OPENAI_BASE_URL``. Prints the number of requests.
"""

import json
import os
import urllib.request
from typing import Any

from openresponses_types import types  # noqa: F401

MODEL = "assistant"
PIXELS = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
