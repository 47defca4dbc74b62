"""Skeletons of configs, each built once in a test run."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from ropepatch.model.skeleton import Skeleton, skeleton_of_config


def skeleton(config: dict[str, Any], *, code_from: Path | None = None) -> Skeleton:
    """As `skeleton_of_config`; reading a skeleton does not change it, so it may be shared."""
    assert code_from is None
    return _skeleton(json.dumps(config, sort_keys=True))


@cache
def _skeleton(text: str) -> Skeleton:
    return skeleton_of_config(json.loads(text))
