"""Collects the class defaults of every rotary model family in transformers, as data.

`ropepatch` reads a checkpoint's `config.json` without importing transformers, and hub files leave
out whatever equals the class default: Gemma 3 4B's text part names neither a head dimension nor a
θ. So those defaults are written down once, in `ropepatch/families/defaults.json`, by asking the
config classes themselves. What a class makes of an old-fashioned key is not read from its source
but *probed*: build it with that key set to an odd value, and see which block the value lands in.

Run `python tests/census/family_defaults.py` after a transformers upgrade and commit the difference.

A value is recorded only where it is a default in its own right. Llama's head dimension is computed
from the hidden size, so no number stands here for it; Gemma's 256 is a constant, so it does.
"""

import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# A config's attributes depend on its family, which no type can say.
Config = Any
Block = dict[str, Any]
Blocks = dict[str, Block | None]

TARGET = Path(__file__).resolve().parents[2] / "ropepatch" / "families" / "defaults.json"

FIELDS = (
    "attention_chunk_size",
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "max_window_layers",
    "no_rope_layer_interval",
    "num_attention_heads",
    "num_hidden_layers",
    "original_max_position_embeddings",
    "qk_rope_head_dim",
    "rotary_dim",
    "sliding_window",
    "use_sliding_window",
)
THETA_KEYS = (
    "global_rope_theta",
    "local_rope_theta",
    "rope_local_base_freq",
    "rope_local_theta",
    "rotary_emb_base",
    "swa_rope_theta",
    "compress_rope_theta",
    "rope_theta",
)
PARTIAL_KEYS = ("rotary_pct", "rope_pct", "rotary_percent", "partial_rotary_factor")

# What a head dimension may be computed from.
HEAD_SOURCES = ("hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim")

# Values no class has as its default, so that finding one again proves where it came from.
ODD_THETA, OTHER_ODD_THETA = 54321.5, 76543.5
ODD_FACTOR = 3.5
ODD_PARTIALS = (0.375, 0.1875)  # the second one for classes which refuse a rotary part that wide

# A default list of layers is cut to its period only if the rule also holds at these depths.
PROBE_DEPTHS = (7, 8, 12, 13, 30, 41)

# These rotate by a table of their own and have no `rope_parameters`: listed, so that they can be
# refused by name rather than taken for models without rotation.
OWN_TABLE = ("codegen", "gptj")

# Rotary classes of the other towers that live in a text model's module.
OTHER_TOWER = re.compile(r"Vision(?!Text)|Audio|DiT|SaProt|Talker")


def collect() -> dict[str, Any]:
    """Asks every config class behind a causal or image-text model for its defaults.

    Returns:
        The content of `defaults.json`: `transformers` (version), `text_types`, `without_rope`,
        `families` and `not_collected`.
    """
    with quiet():
        return collect_noisily()


@contextmanager
def quiet() -> Iterator[None]:
    """Silences what the classes say of odd values; a warning must not turn into an error either.

    (pytest may have warnings raise, and a raise is how a class refuses a value.)
    """
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def collect_noisily() -> dict[str, Any]:
    """As `collect`, while the classes warn of the odd values they are given."""
    text_types: dict[str, str] = {}
    without_rope: set[str] = set()
    families: dict[str, dict[str, Any]] = {}
    not_collected: dict[str, str] = {}
    for model_type in model_types():
        text_type = text_type_of(model_type)
        if text_type != model_type:
            text_types[model_type] = text_type
        if text_type in families or text_type in without_rope:
            continue
        rotary = rotary_class(text_type, model_type)
        if rotary is None:
            without_rope.add(text_type)
            continue
        try:
            families[text_type] = family(CONFIG_MAPPING[text_type], rotary, text_type)
        except Exception as error:  # whatever a config class raises is the reason we note
            not_collected[text_type] = f"{type(error).__name__}: {error}"
    return {
        "transformers": transformers.__version__,
        "text_types": text_types,
        "without_rope": sorted(without_rope),
        "families": families,
        "not_collected": not_collected,
    }


def model_types() -> list[str]:
    """Every model type with a causal or an image-text-to-text model class."""
    return sorted(
        {
            *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        }
    )


def text_type_of(model_type: str) -> str:
    """The model type of the text part a config of this type has by default (often its own)."""
    config_class = CONFIG_MAPPING[model_type]
    try:
        return str(config_class().get_text_config().model_type)
    except Exception:  # no default instance, or two text towers: ask the class's own table
        part = config_class.sub_configs_defaults.get("text_config")
        return str(part.model_type) if part else model_type


# --- the rotary class -------------------------------------------------------------------------


def rotary_class(text_type: str, composite_type: str) -> type[Any] | None:
    """The class that rotates in this text model, or None if none does.

    Args:
        text_type: Model type of the text part.
        composite_type: A model type whose text part it is, for parts without a model of their own.
    """
    module = model_module(text_type, composite_type)
    classes = {name: item for name, item in vars(module).items() if inspect.isclass(item)}
    rotary = {
        name: item
        for name, item in classes.items()
        if name.endswith("RotaryEmbedding") and not OTHER_TOWER.search(name)
    }
    if len(rotary) > 1:
        # Towers share a module: ours is the one built by a class whose config is this text config.
        config_class = CONFIG_MAPPING[text_type]
        for item in classes.values():
            if getattr(item, "config_class", None) is config_class:
                for name in re.findall(r"\w+RotaryEmbedding", inspect.getsource(item.__init__)):
                    if name in rotary:
                        return rotary[name]
    return next(iter(rotary.values()), None)


def model_module(text_type: str, composite_type: str) -> ModuleType:
    """The module with the model class, found through the auto classes.

    Not by its name: `exaone` or `internlm3` are config classes which run Llama's model.
    """
    places = (
        (modeling_auto.MODEL_MAPPING, text_type),
        (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, text_type),
        (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, composite_type),
        (modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, composite_type),
    )
    for mapping, model_type in places:
        try:
            found = mapping[CONFIG_MAPPING[model_type]]
        except KeyError:
            continue
        model_class = found[0] if isinstance(found, tuple) else found
        return sys.modules[model_class.__module__]
    raise LookupError(f"no model class for {text_type!r} or {composite_type!r}")


def reads_partial(rotary: type[Any]) -> bool:
    """Whether the plain schedule of this rotary class reads `partial_rotary_factor`."""
    rule = getattr(rotary, "compute_default_rope_parameters", rotary)
    return "partial_rotary_factor" in inspect.getsource(rule)


# --- one family -------------------------------------------------------------------------------


def family(config_class: type[Any], rotary: type[Any], text_type: str) -> dict[str, Any]:
    """Everything a reader of `config.json` must know about one text model type."""
    config = build(config_class)
    row = fields(config_class, config)
    row |= head_dims(config_class, config)
    aliases = other_names(config_class)
    if aliases:
        row["aliases"] = aliases
    row |= layers(config_class, config)
    if text_type in OWN_TABLE:
        return row | {"blocks": {}}

    probe = Probe(config_class, rotary)
    row["blocks"] = {label: tidy(block) for label, block in probe.defaults.items()}
    row["theta_keys"] = probe.theta_keys()
    scaled_only = [pair for pair in probe.theta_keys(scaled=True) if pair not in row["theta_keys"]]
    row["partial_keys"] = probe.partial_keys()
    row["honours_partial"] = reads_partial(rotary) and probe.keeps_partial()
    row["scaling_label"] = probe.scaling_label()
    if row["scaling_label"] is not None:
        if scaled_only:
            row["theta_keys_if_scaled"] = scaled_only
        thetas = probe.theta_if_scaled()
        if thetas:
            row["theta_if_scaled"] = thetas
    return row


def build(config_class: type[Any], **values: object) -> Config:
    """A config as a `config.json` with these values would give it.

    Raises:
        Exception: Whatever the class makes of values it refuses.
    """
    # Some classes keep, and later change, the very dict they are given.
    config = config_class(**json.loads(json.dumps(values)))
    # Configs with per-layer values refuse to name the common one unless told so.
    config.allow_global_per_layer_attribute_access = True
    return config


def accepts(config_class: type[Any], **values: object) -> Config | None:
    """As `build`, or None if the class refuses."""
    try:
        return build(config_class, **values)
    except Exception:
        return None


def fields(config_class: type[Any], config: Config) -> dict[str, Any]:
    """The plain numbers of a family, without those it computes from others."""
    row = {}
    for name in FIELDS:
        value = getattr(config, name, None)
        if name == "sliding_window" and getattr(config, "use_sliding_window", None) is False:
            # The qwen2 family hides its window while the switch is off, but the number is there.
            value = getattr(accepts(config_class, use_sliding_window=True), name, value)
        if value is not None and not computed(config_class, config, name):
            row[name] = value
    return row


def computed(
    config_class: type[Any], config: Config, name: str, sources: tuple[str, ...] = HEAD_SOURCES
) -> bool:
    """Whether a head dimension follows from one of these other values of the config."""
    if name not in ("head_dim", "qk_rope_head_dim"):
        return False
    for source in sources:
        if config_class.attribute_map.get(source) == name:
            continue  # two names of one number: it is recorded under the real one
        value = getattr(config, source, None)
        if value and source != name:
            other = accepts(config_class, **{source: value * 2})
            if other is not None and getattr(other, name, None) != getattr(config, name):
                return True
    return False


def head_dims(config_class: type[Any], config: Config) -> dict[str, Any]:
    """What there is to say of head dimensions that are not one constant."""
    row: dict[str, Any] = {}
    head_dim = getattr(config, "head_dim", None)
    if head_dim is None:
        # transformers' scaled schedules read the attribute and crash on None; a class without it
        # lets them fall back to hidden size over heads.
        return {"head_dim_required": True} if hasattr(config, "head_dim") else {}
    per_head = config.hidden_size // config.num_attention_heads
    if computed(config_class, config, "head_dim", ("hidden_size",)) and head_dim != per_head:
        row["head_dim_ratio"] = head_dim // per_head
    wide = accepts(config_class, global_head_dim=head_dim * 4)
    if global_head_dim(wide) == head_dim * 4:
        row["global_head_dim"] = global_head_dim(config)
    return row


def global_head_dim(config: Config | None) -> int | None:
    """Head dimension of the full attention layers, where the config keeps values per layer."""
    if config is None or not config.is_heterogeneous or "full_attention" not in config.layer_types:
        return None
    return int(config.per_layer_config["full_attention"].head_dim)


def other_names(config_class: type[Any]) -> dict[str, str]:
    """Fields a `config.json` of this family may name in another way: DBRX's `d_model`."""
    ours = {*FIELDS, "layer_types"}
    both_ways = config_class.attribute_map.items()
    pairs = [*both_ways, *((alias, name) for name, alias in both_ways)]
    return {name: alias for name, alias in pairs if name in ours and alias not in ours}


def tidy(block: Block | None) -> Block | None:
    """A block without the stale `type` beside its `rope_type`."""
    return block and {key: value for key, value in block.items() if key != "type"}


# --- layers -----------------------------------------------------------------------------------


def layers(config_class: type[Any], config: Config) -> dict[str, Any]:
    """Default kinds of layers, and which of them rotate, each cut to its shortest period."""
    row: dict[str, Any] = {}
    kinds = getattr(config, "layer_types", None)
    if kinds:
        at_depths = list(lists_at_depths(config_class, "layer_types"))
        ruled = period(list(kinds), at_depths)
        last = forced_last(list(kinds), at_depths)
        if ruled is not None:
            row["layer_types"] = ruled
        elif last is not None:
            row["layer_types"], row["layer_types_last"] = last
        else:
            row["layer_types_list"] = list(kinds)
    rotates = getattr(config, "no_rope_layers", None)
    if rotates:
        ruled = period(list(rotates), list(lists_at_depths(config_class, "no_rope_layers")))
        row["nope_period"] = ruled if ruled is not None else list(rotates)
    return row


def lists_at_depths(config_class: type[Any], name: str) -> Iterator[list[Any]]:
    """The default of a per-layer list at other depths, where the class has a rule for them."""
    for depth in PROBE_DEPTHS:
        other = accepts(config_class, num_hidden_layers=depth)
        values = getattr(other, name, None)
        if values and len(values) == depth:
            yield list(values)


def period(values: list[Any], others: list[list[Any]]) -> list[Any] | None:
    """The shortest start of `values` that, repeated, gives `values` and every other list.

    Returns:
        That start, or None if the lists follow no such rule, or if it would be a rule seen once.
    """
    for length in range(1, len(values) // 2 + 1):
        start = values[:length]
        if all(repeated(start, each) for each in (values, *others)):
            return start
    return None


def forced_last(values: list[Any], others: list[list[Any]]) -> tuple[list[Any], str] | None:
    """As `period`, for classes which make the last layer another kind whatever the period says."""
    last = str(values[-1])
    if any(each[-1] != last for each in others):
        return None
    start = period(values[:-1], [each[:-1] for each in others])
    return None if start is None else (start, last)


def repeated(start: list[Any], values: list[Any]) -> bool:
    """Whether `values` is `start` over and over (the last round may be cut short)."""
    return all(value == start[i % len(start)] for i, value in enumerate(values))


# --- probing ----------------------------------------------------------------------------------


class Probe:
    """Builds one config class again and again with an odd value, and looks where it went.

    Attributes:
        base: Values every build is given: for families with a block per layer type, layers of each
            type, because some classes write only the blocks their layers need.
        defaults: The class's default blocks under `base`.
    """

    def __init__(self, config_class: type[Any], rotary: type[Any]) -> None:
        """Finds the default blocks of `config_class`, whose `rotary` class tells what works."""
        self.config_class = config_class
        self.rotary = rotary
        self.base = self.all_layer_types()
        self.defaults = blocks_of(build(config_class, **self.base))

    def all_layer_types(self) -> dict[str, Any]:
        """Layers of every type the class has a block for, or nothing for flat families."""
        config = build(self.config_class)
        labels = list(blocks_of(config))
        kinds = getattr(config, "layer_types", None) or []
        if labels == [""] or not set(labels) <= set(kinds) | {"sliding_attention"}:
            wanted = labels if set(labels) & set(kinds) else []
        else:
            wanted = sorted({*labels, "sliding_attention"})
        if not wanted or set(wanted) <= set(kinds):
            return {}
        depth = len(kinds)
        values = {
            "layer_types": [wanted[i % len(wanted)] for i in range(depth)],
            "sliding_window": getattr(config, "sliding_window", None) or 128,
        }
        return values if accepts(self.config_class, **values) else {}

    def found(self, key: str, value: object, **given: object) -> list[str]:
        """Labels of the blocks in which `key` has this value when `given` stands in the file."""
        config = accepts(self.config_class, **self.base, **given)
        if config is None:
            return []
        blocks = blocks_of(config)
        if blocks.keys() != self.defaults.keys():  # the blocks were replaced by one flat dict,
            return []  # which a model with one block per layer type cannot use
        return sorted(label for label, block in blocks.items() if block and block.get(key) == value)

    def theta_keys(self, *, scaled: bool = False) -> list[list[str]]:
        """Old top-level keys that set a block's θ, a winning key before the one it beats.

        Args:
            scaled: Ask for a file which has an old `rope_scaling` too. Classes whose default block
                is complete ignore a θ beside it, yet take one for a block that came without.
        """
        given = {"rope_scaling": self.working_scaling} if scaled else {}
        pairs = [
            (key, label)
            for key in self.acting(THETA_KEYS, ODD_THETA, "rope_theta", **given)
            for label in self.found("rope_theta", ODD_THETA, **given, **{key: ODD_THETA})
        ]
        for i in range(len(pairs)):
            for j in range(i + 1, len(pairs)):
                (first, label), (second, other) = pairs[i], pairs[j]
                both = {first: ODD_THETA, second: OTHER_ODD_THETA}
                if label == other and label in self.found(
                    "rope_theta", OTHER_ODD_THETA, **given, **both
                ):
                    pairs[i], pairs[j] = pairs[j], pairs[i]
        return [list(pair) for pair in pairs]

    def acting(
        self, keys: tuple[str, ...], value: float, target: str, **given: object
    ) -> tuple[str, ...]:
        """The keys worth probing one by one: the last alone, if all others together do nothing."""
        rare, usual = keys[:-1], keys[-1:]
        together = self.found(target, value, **given, **dict.fromkeys(rare, value))
        return keys if together else usual

    def theta_if_scaled(self) -> dict[str, float]:
        """θ of the blocks which change it when a file has an old `rope_scaling` without a θ."""
        config = build(self.config_class, **self.base, rope_scaling=self.working_scaling)
        return {
            label: block["rope_theta"]
            for label, block in blocks_of(config).items()
            if block and block.get("rope_theta") != (self.defaults[label] or {}).get("rope_theta")
        }

    def partial_keys(self) -> list[str]:
        """Old top-level keys that set the rotary fraction of a block."""
        head_dim = getattr(build(self.config_class, **self.base), "head_dim", None) or 128
        keys = []
        acting = self.acting(PARTIAL_KEYS, ODD_PARTIALS[0], "partial_rotary_factor")
        for key in (*acting, "rotary_dim"):
            for part in ODD_PARTIALS:
                value = int(part * head_dim) if key == "rotary_dim" else part
                if self.found("partial_rotary_factor", part, **{key: value}):
                    keys.append(key)
                    break
        return keys

    def keeps_partial(self) -> bool:
        """Whether a rotary fraction written into the blocks themselves stands.

        Dots 3 Note puts the fraction its head dimensions give in its place.
        """
        written = {
            label: block and {**block, "partial_rotary_factor": ODD_PARTIALS[1]}
            for label, block in self.defaults.items()
        }
        parameters = written.get("", written)
        return bool(
            self.found("partial_rotary_factor", ODD_PARTIALS[1], rope_parameters=parameters)
        )

    def scaling_label(self) -> str | list[str] | None:
        """The block an old top-level `rope_scaling` goes into.

        Returns:
            Its label ("" for flat families), several if it goes into several, or None if no
            scaling of any type gets through the config class and the rotary class.
        """
        scaling = self.working_scaling
        if scaling is None:
            return None
        labels = self.found("factor", ODD_FACTOR, rope_scaling=scaling)
        return labels[0] if len(labels) == 1 else labels

    @cached_property
    def working_scaling(self) -> Block | None:
        """A scaling block this family accepts and builds its rotary module from."""
        for scaling in self.scalings():
            if self.found("factor", ODD_FACTOR, rope_scaling=scaling):
                config = build(self.config_class, **self.base, rope_scaling=scaling)
                if buildable(self.rotary, config):
                    return scaling
        return None

    def scalings(self) -> Iterator[Block]:
        """Scaling blocks, the plainest type first. Phi-3's classes take the last only."""
        yield {"rope_type": "linear", "factor": ODD_FACTOR}
        yield {"rope_type": "yarn", "factor": ODD_FACTOR, "original_max_position_embeddings": 512}
        config = build(self.config_class, **self.base)
        size = getattr(config, "head_dim", None)
        size = size or config.hidden_size // config.num_attention_heads
        yield {
            "rope_type": "longrope",
            "factor": ODD_FACTOR,
            "short_factor": [1.0] * (size // 2),
            "long_factor": [2.0] * (size // 2),
            "short_mscale": 1.0,
            "long_mscale": 1.0,
            "original_max_position_embeddings": 512,
        }


def blocks_of(config: Config) -> Blocks:
    """A config's blocks by layer type, or one block under "" where it is flat."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    if config.nested_rope_parameter_keys(parameters):
        # Also the blocks no default layer uses: a file's layer types may ask for them.
        return {
            label: block
            for label, block in parameters.items()
            if block is None or isinstance(block, dict)
        }
    if not parameters and getattr(config, "layer_types", None):
        return dict.fromkeys(config.layer_types)  # keyed by layer type, none by default
    return {"": parameters}


def buildable(rotary: type[Any], config: Config) -> bool:
    """Whether the rotary module can be made from this config."""
    try:
        rotary(config=config)
    except Exception:
        return False
    return True


def main() -> None:
    """Writes the defaults where the library reads them."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(dump(collect()), encoding="utf-8")


def dump(defaults: dict[str, Any]) -> str:
    """The text of the file: sorted and indented, so that an upgrade shows as a small diff."""
    return json.dumps(defaults, sort_keys=True, indent=1) + "\n"


if __name__ == "__main__":
    main()
