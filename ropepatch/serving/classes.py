"""Which classes an engine has, as its own registry lists them.

`classes.json` holds names alone: of architectures for vLLM 0.33.0 (models/registry.py), SGLang
0.5.23 (the entry classes of srt/models) and LMDeploy 0.18.0 (pytorch/models/module_map.py and
turbomind/supported_models.py), of model types for TGI 3.3.7 (models/__init__.py) and transformers
4.57 (configuration_auto.py).
"""

import json
from functools import cache
from importlib import resources

from ropepatch.serving.base import refuse
from ropepatch.serving.served import ServedModel


def has_class(engine: str, served: ServedModel) -> bool:
    """Whether an engine lists the model's class; True where the config does not name one."""
    if engine == "tgi":
        return served.outer_type in _names(engine)
    if engine == "transformers4":
        return {served.outer_type, served.model_type} <= _names(engine)
    named = served.architectures or served.config.get("architectures")
    if not isinstance(named, list | tuple) or not named:
        return True
    return any(name in _names(engine) for name in named)


def refuse_unknown(engine: str, served: ServedModel) -> None:
    """Refuse a class that an engine does not list.

    Raises:
        CannotSayError: so it is.
    """
    if not has_class(engine, served):
        refuse(f"it has no class for '{served.outer_type}'")


@cache
def _names(engine: str) -> frozenset[str]:
    text = resources.files("ropepatch.serving").joinpath("classes.json").read_text("utf-8")
    return frozenset(name for line in json.loads(text)[engine] for name in line.split())
