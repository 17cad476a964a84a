"""Records the schemas that transformers derives from the functions in `tools_of_tests.py`.

Run `python record_tools.py > tool_schemas.json`. The tests compare `gradus` with this file, so they do not need transformers.
"""

from __future__ import annotations

import importlib
import json

from tools_of_tests import TOOLS

transformers = importlib.import_module("transformers")
recorded = {
    "transformers": transformers.__version__,
    "tools": [transformers.utils.get_json_schema(tool)["function"] for tool in TOOLS],
}
print(json.dumps(recorded, indent=1))
