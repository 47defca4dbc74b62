"""A parameter's value as its annotation says, from what a file or a command line gave."""

import math
import types
import typing
from numbers import Real
from typing import Any


def coerce(value: Any, annotation: Any) -> Any:
    """`value` as the annotation says; a ValueError's text completes 'must be'."""
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    if value is None and type(None) in options:
        return None
    if bool in options:
        if isinstance(value, bool):
            return value
        raise ValueError("true or false")
    if any(typing.get_origin(option) is tuple for option in options):
        if isinstance(value, list | tuple) and all(_is_number(v) for v in value):
            return tuple(float(v) for v in value)
        raise ValueError("a list of numbers")
    if _is_number(value):
        return float(value)
    if str in options:  # keep: a fraction or 'auto'
        if value == "auto":
            return value
        raise ValueError("a number or 'auto'")
    raise ValueError("a number")


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real | str):  # NumPy's too
        return False
    try:
        return not math.isnan(float(value))
    except (ValueError, OverflowError):
        return False
