"""What transformers' auto classes find under the model type of converted checkpoints."""

from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from ropepatch.errors import ConfigError, UnsupportedModelError
from ropepatch.runtime.words import MODEL_TYPE, STAMP, is_converted


class AnyConvertedConfig(PreTrainedConfig):
    """What the auto classes find under our model type; each config becomes one of its family."""

    model_type = MODEL_TYPE

    def __new__(cls, *args: Any, **words: Any) -> Any:
        """A config of the converted family, where its words are given (as part of another)."""
        found = {"model_type": MODEL_TYPE, **words}
        return cls.from_dict(found) if is_converted(words) else super().__new__(cls)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **words: Any) -> Any:
        """A config of the converted family.

        Raises:
            UnsupportedModelError: transformers has no such family.
        """
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        from ropepatch.runtime.made import converted_config, register

        stamp = config_dict.get(STAMP)
        base = stamp.get("base") if isinstance(stamp, dict) and is_converted(config_dict) else None
        kind = str(base.get("model_type")) if isinstance(base, dict) else "?"
        if kind not in CONFIG_MAPPING or kind == MODEL_TYPE:
            raise UnsupportedModelError(
                f"config.json says it was converted from '{kind}', which this transformers does "
                "not have."
            )
        base_class: Any = CONFIG_MAPPING[kind]
        found = converted_config(base_class)
        register(found)
        try:
            return found.from_dict(config_dict, **words)
        except ValueError as error:
            raise ConfigError(f"{error}.") from None
