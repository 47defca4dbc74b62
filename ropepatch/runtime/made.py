"""Converted classes where ropepatch is installed: made when they are asked for."""

from functools import cache
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from ropepatch.errors import UnsupportedModelError
from ropepatch.runtime.words import PREFIX

Class = Any
"""A class of transformers, or one made of it; they are made as they are asked for."""

_TEMPLATES = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModel",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
)


@cache
def converted_config(base: Class) -> Class:
    """The converted class of a config class."""
    from ropepatch.runtime.classes import ConvertedConfig
    from ropepatch.runtime.module import module_text

    def source(cls: Class) -> str:
        return module_text(base, family_classes(base.model_type)[1])

    own = {"ropepatch_source": classmethod(source)}
    return _made(f"{PREFIX}{base.__name__}", (ConvertedConfig, base), own)


@cache
def converted_model(base: Class, config: Class) -> Class:
    """The converted class of a model class, for a converted config class."""
    from ropepatch.runtime.classes import ConvertedModel

    return _made(f"{PREFIX}{base.__name__}", (ConvertedModel, base), {"config_class": config})


def _made(name: str, bases: tuple[Class, ...], own: dict[str, Any]) -> Class:
    made = type(name, bases, {"__module__": __name__, "__doc__": bases[0].__doc__, **own})
    globals()[name] = made  # where pickle looks for it
    return made


def __getattr__(name: str) -> Class:
    """A converted class by its name, for pickles that come to a fresh process."""
    import transformers

    base: Class = getattr(transformers, name.removeprefix(PREFIX), None)
    if not name.startswith(PREFIX) or not hasattr(base, "__mro__"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if PreTrainedConfig in base.__mro__:
        return converted_config(base)
    return converted_model(base, converted_config(base.config_class))


def class_for(template: str, config: Class) -> Class | None:
    """The model class that an auto class takes for a config class of transformers."""
    import transformers

    mapping = getattr(transformers, template)._model_mapping
    found = mapping.get(config, None)
    if not isinstance(found, type):
        return None
    own: Any = getattr(found, "config_class", None)
    parts = getattr(config, "sub_configs", None) or {}
    return None if own in parts.values() else found  # some take a part of the config alone


def family_classes(model_type: str) -> tuple[Class, tuple[Class, ...]]:
    """The config class and the model classes of a model type, causal language models first.

    Raises:
        UnsupportedModelError: no auto class builds it.
    """
    config = CONFIG_MAPPING[model_type]
    found = (class_for(name, config) for name in _TEMPLATES)
    models = tuple(dict.fromkeys(one for one in found if one is not None))
    if not models:
        raise UnsupportedModelError(f"no auto class of transformers builds a '{model_type}'.")
    return config, models


def plain_class(cls: Class) -> Class:
    """The class of transformers that a class is, or derives from."""
    return next(one for one in cls.__mro__ if one.__module__.startswith("transformers."))


def base_names(config: Class, model: Class | None = None) -> dict[str, Any]:
    """What a stamp says of the classes of a model: its type, its class, those of `auto_map`.

    Args:
        config: The config class, of transformers.
        model: The model class, where there is one already.
    """
    found = {"AutoConfig": config.__name__}
    for name in _TEMPLATES:
        cls = class_for(name, config)
        if cls is not None:
            found[name] = cls.__name__
    names = [found[name] for name in _TEMPLATES if name in found]
    return {
        "model_type": config.model_type,
        "class": model.__name__ if model is not None else names[0],
        "classes": found,
    }


@cache
def register(config: Class) -> None:
    """Let the auto classes build the models of a converted config class."""
    import transformers

    for name in _TEMPLATES:
        base = class_for(name, config.__mro__[2])
        if base is not None:
            template: Any = getattr(transformers, name)
            template.register(config, converted_model(base, config), exist_ok=True)
