"""Records what transformers makes of the functions in `tools_of_tests.py`: `python record_tools.py > tool_schemas.json`."""

from __future__ import annotations

import json

import transformers
from tools_of_tests import TOOLS
from transformers.utils import get_json_schema

recorded = {"transformers": transformers.__version__, "tools": [get_json_schema(tool)["function"] for tool in TOOLS]}
print(json.dumps(recorded, indent=1))
