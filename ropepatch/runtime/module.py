"""The Python file that lies beside the weights of a converted model, made of the files here."""

import ast
from functools import cache
from importlib import resources
from typing import Any

from ropepatch._version import __version__
from ropepatch.runtime.words import PREFIX

_PARTS = ("words", "channels", "attention", "native", "classes")

_HEAD = '''\
# Written by ropepatch {version}, licensed under the Apache License 2.0. It needs torch and
# transformers 5, and makes this checkpoint load where ropepatch is not installed:
# AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
"""A model whose rotary position embeddings were converted: to linear biases (ALiBi), or to none."""

import transformers

if int(transformers.__version__.split(".")[0]) < 5:
    raise ImportError(
        f"this converted checkpoint needs transformers 5, not {{transformers.__version__}}."
    )

'''

_CONFIG = '''

class {prefix}{name}(ConvertedConfig, {name}):
    """The config of a converted model."""
'''

_MODEL = '''

class {prefix}{name}(ConvertedModel, {name}):
    """A converted model."""

    config_class = {prefix}{config}
'''


def module_text(config: type[Any], models: tuple[type[Any], ...]) -> str:
    """The whole file for a config class of transformers and the model classes that go with it."""
    classes = (config, *dict.fromkeys(models))
    imports = "".join(f"\nfrom {cls.__module__} import {cls.__name__}" for cls in classes)
    made = _CONFIG.format(prefix=PREFIX, name=config.__name__)
    for cls in classes[1:]:
        made += _MODEL.format(prefix=PREFIX, name=cls.__name__, config=config.__name__)
    return _HEAD.format(version=__version__) + _parts() + f"\n{imports}\n{made}"


@cache
def _parts() -> str:
    return "\n\n".join(_stripped(f"{name}.py") for name in _PARTS)


def _stripped(name: str) -> str:
    """A file without its docstring and what it imports from its neighbours."""
    text = (resources.files("ropepatch.runtime") / name).read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.parse(text).body:
        own = isinstance(node, ast.ImportFrom) and str(node.module).startswith("ropepatch.")
        if own or (isinstance(node, ast.Expr) and node.lineno == 1):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines).strip("\n")
