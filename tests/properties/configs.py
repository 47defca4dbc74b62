"""Random configs as files hold them, random recipes for them, and nonsense."""

from typing import Any

from hypothesis import strategies as st

from ropepatch.config_json.plan import POSITION_KEYS
from ropepatch.methods.table import METHODS
from ropepatch.recipe import Recipe
from tests.properties.strategies import VALID, divisors

Json = dict[str, Any]

FLAT = {
    "llama": ((1.0,), "rope_theta", None),
    "mistral": ((1.0,), "rope_theta", None),
    "qwen3": ((1.0,), "rope_theta", None),
    "mixtral": ((1.0,), "rope_theta", None),
    "smollm3": ((1.0,), "rope_theta", None),
    "deepseek_v3": ((1.0,), "rope_theta", None),
    "phi3": ((0.75, 1.0), "rope_theta", "partial_rotary_factor"),
    "stablelm": ((0.25, 0.5), "rope_theta", "partial_rotary_factor"),
    "gpt_neox": ((0.25, 0.5, 1.0), "rotary_emb_base", "rotary_pct"),
    "llama_of_somebody": ((1.0,), "rope_theta", None),
}
"""model_type -> parts of a head that may turn, and version 4's keys of theta and of that part."""

NESTED = {
    "gemma3_text": {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
    "olmo3": {"full_attention": "rope_theta"},
    "modernbert-decoder": {
        "full_attention": "global_rope_theta",
        "sliding_attention": "local_rope_theta",
    },
}
"""model_type -> version 4's keys of theta by layer type."""

DIALECTS = ("auto", "v4", "v5", "both")
TRAINED = (512, 2048, 4096, 32768)
factors = st.sampled_from([2.0, 4.0, 8.0]) | st.integers(65, 2048).map(lambda n: n / 64)
"""Reaching whole numbers of tokens: version 4's Phi has no other word for a factor."""
thetas = st.sampled_from([10000.0, 10000, 500000.0, 1e6])
strays: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {},
    optional={
        "rope_theta_note": st.text(max_size=3),
        "rope_interleaved": st.booleans(),
        "attention_bias": st.booleans(),
        "quantization_config": st.just({"bits": 4, "group": [1, 2]}),
        "pad_token_id": st.none(),
    },
)


def scalings(trained: int, pairs: int) -> st.SearchStrategy[tuple[Json, int]]:
    """Blocks that shipped files carry, with their `max_position_embeddings`."""
    factor = st.sampled_from([2.0, 4, 8.0])
    block: st.SearchStrategy[Json] = st.one_of(
        st.fixed_dictionaries(
            {"rope_type": st.just("yarn"), "factor": factor},
            optional={
                "beta_fast": st.just(32),
                "mscale": st.just(1.0),
                "attention_factor": st.just(1.0),
                "truncate": st.booleans(),
                "finetuned": st.just(True),
                "original_max_position_embeddings": st.just(trained),
            },
        ),
        st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": factor}),
        st.fixed_dictionaries({"rope_type": st.just("dynamic"), "factor": factor}),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("llama3"),
                "factor": factor,
                "low_freq_factor": st.just(1.0),
                "high_freq_factor": st.just(4.0),
                "original_max_position_embeddings": st.just(trained),
            }
        ),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("longrope"),
                "short_factor": divisors(pairs).map(list),
                "long_factor": divisors(pairs).map(list),
                "original_max_position_embeddings": st.just(trained),
            },
            optional={"factor": factor},
        ),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("proportional"),
                "partial_rotary_factor": st.sampled_from([0.25, 0.5, 0.75]),
            },
            optional={"factor": factor},
        ),
    )
    lengths = st.sampled_from([trained, 2 * trained, 4 * trained])
    return st.tuples(block, lengths)


@st.composite
def sizes(draw: st.DrawFn, trained: int) -> tuple[Json, int]:
    """Sizes of a model, and the width of its heads."""
    heads, width = draw(st.sampled_from([2, 4])), draw(st.sampled_from([64, 96, 128]))
    words: Json = {
        "vocab_size": 128,
        "hidden_size": heads * width,
        "num_hidden_layers": draw(st.integers(1, 9)),
        "num_attention_heads": heads,
        "max_position_embeddings": trained,
    }
    kind = draw(st.sampled_from(["silent", "null", "own"]))
    if kind == "own":
        width = draw(st.sampled_from([64, 128]))
        words["head_dim"] = width
    elif kind == "null":
        words["head_dim"] = None
    return words, width


@st.composite
def flat_configs(draw: st.DrawFn, *, scaled: bool = True) -> tuple[Json, int]:
    """A config with one schedule, and its number of pairs."""
    model_type = draw(st.sampled_from(list(FLAT)))
    partials, theta_key, partial_key = FLAT[model_type]
    partial = draw(st.sampled_from(partials))
    trained = draw(st.sampled_from(TRAINED))
    words, width = draw(sizes(trained))
    if model_type in ("qwen3", "deepseek_v3"):  # their classes have a width of their own
        words["qk_rope_head_dim" if model_type == "deepseek_v3" else "head_dim"] = width
    pairs = int(width * partial) // 2
    block: Json = {"rope_type": "default"}
    if scaled and draw(st.booleans()):
        block, words["max_position_embeddings"] = draw(scalings(trained, pairs))
    theta = draw(thetas)
    dialect = draw(st.sampled_from(["v4", "v5", "both"]))
    if dialect != "v5":
        word = draw(st.sampled_from(["type", "rope_type"]))
        old: Json = {word: block["rope_type"], **{k: block[k] for k in block if k != "rope_type"}}
        plain = block == {"rope_type": "default"} and draw(st.booleans())
        words |= {theta_key: theta, "rope_scaling": None if plain else old}
    if dialect != "v4":
        words["rope_parameters"] = {**block, "rope_theta": theta}
    if partial_key and block["rope_type"] != "proportional":
        if dialect != "v5":
            words[partial_key] = partial
        if dialect != "v4":
            words["rope_parameters"]["partial_rotary_factor"] = partial
        if dialect == "both" and words["rope_scaling"] is not None:
            words["rope_scaling"]["partial_rotary_factor"] = partial
    if draw(st.booleans()):
        words["original_max_position_embeddings"] = trained
    return {"model_type": model_type, **draw(strays), **words}, pairs


@st.composite
def nested_configs(draw: st.DrawFn, *, scaled: bool = True) -> tuple[Json, int]:
    """A config with a schedule per layer type, and the number of pairs of each."""
    model_type = draw(st.sampled_from(list(NESTED)))
    trained = draw(st.sampled_from(TRAINED))
    words, width = draw(sizes(trained))
    if model_type == "gemma3_text":
        words["head_dim"] = width
    count = words["num_hidden_layers"]
    if draw(st.booleans()):
        kinds = st.sampled_from(["full_attention", "sliding_attention"])
        words["layer_types"] = draw(st.lists(kinds, min_size=count, max_size=count))
    words["sliding_window"] = draw(st.sampled_from([64, 1024]))
    blocks: dict[str, Json] = {
        label: {"rope_type": "default", "rope_theta": draw(thetas)}
        for label in ("full_attention", "sliding_attention")
    }
    if scaled and draw(st.booleans()):
        block, words["max_position_embeddings"] = draw(scalings(trained, width // 2))
        blocks["full_attention"] |= block
    if draw(st.booleans()):
        words["rope_parameters"] = blocks
    else:
        for label, key in NESTED[model_type].items():
            words[key] = blocks[label].pop("rope_theta")
        full = blocks["full_attention"]
        full.pop("rope_theta", None)
        words["rope_scaling"] = None if full == {"rope_type": "default"} else full
    config = {"model_type": model_type, **draw(strays), **words}
    if model_type == "gemma3_text" and draw(st.booleans()):
        config = {"model_type": "gemma3", "text_config": config, "vision_config": {"x": [1]}}
    return config, width // 2


def configs(*, scaled: bool = True) -> st.SearchStrategy[tuple[Json, int]]:
    return flat_configs(scaled=scaled) | nested_configs(scaled=scaled)


@st.composite
def recipes(draw: st.DrawFn, pairs: int, name: str | None = None) -> Recipe:
    """A recipe that fits a number of pairs."""
    name = name or draw(st.sampled_from(list(METHODS)))
    parameters = draw(VALID[name](pairs))
    return Recipe(
        method=name,
        factor=draw(factors),
        layers=draw(st.sampled_from([("auto",), ("all",), ("auto",), ("full_attention",)])),
        parameters=parameters,
    )


@st.composite
def requests(draw: st.DrawFn, *, scaled: bool = True) -> tuple[Json, Recipe, Any]:
    """A config, a recipe that fits its heads, and a dialect."""
    config, pairs = draw(configs(scaled=scaled))
    return config, draw(recipes(pairs)), draw(st.sampled_from(DIALECTS))


# --- nonsense ---------------------------------------------------------------------------------

json_keys = st.sampled_from(
    [
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "short_factor",
        "long_factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "full_attention",
        "sliding_attention",
        "model_type",
    ]
) | st.text(max_size=3)
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([10**4, 4096, 10**30, -(10**30), 10**400, 0.25, 1e308, -1.5, 5e-324])
    | st.floats()
    | st.sampled_from(
        ["yarn", "linear", "dynamic", "llama3", "longrope", "proportional", "default", "mrope"]
    )
    | st.sampled_from(["su", "full_attention", "sliding_attention", "llama", "", "1", "nan"])
    | st.text(max_size=4)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(json_keys, inner, max_size=5)
        | st.dictionaries(st.sampled_from(["rope_type", "rope_theta", "factor"]), inner, min_size=2)
    ),
    max_leaves=8,
)
STRUCTURE = (
    *POSITION_KEYS,
    "rotary_pct",
    "rotary_dim",
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "no_rope_layers",
    "no_rope_layer_interval",
    "cross_attention_layers",
    "attention_chunk_size",
    "qk_rope_head_dim",
    "global_head_dim",
    "per_layer_config",
    "alibi",
    "transformers_version",
    "model_type",
    "text_config",
    "llm_config",
)
"""Keys that are read somewhere."""

FUZZED = [*FLAT, *NESTED, "gemma4_text", "llama4_text", "falcon", "mllama_text_model", "gpt2"]
plausible: Json = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
}
