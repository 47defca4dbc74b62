"""Two configs, line by line, as a dry run shows them."""

import difflib
import json
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.plan import STAMP


def config_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Unified difference of the two as JSON, keys in order, without our stamp."""

    def lines(config: Mapping[str, Any]) -> list[str]:
        plain = {key: value for key, value in config.items() if key != STAMP}
        return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False).splitlines()

    found = difflib.unified_diff(lines(before), lines(after), n=1, lineterm="")
    return [line for line in found if not line.startswith(("---", "+++", "@@"))]
