"""A method in llama.cpp's words: which keys and which per-pair factors say it."""

import math

from gguf.constants import GGUFValueType

from ropepatch.errors import NotExpressibleError
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.gguf_file.architectures import Architecture
from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.rotation import FREQS, LONG, SHORT, STILL, yarn_temperature
from ropepatch.methods.base import Method
from ropepatch.methods.longrope import LongRope
from ropepatch.methods.ntk import NtkAware
from ropepatch.methods.pi import PositionInterpolation
from ropepatch.methods.yarn import Yarn

ROTARY_KEYS = (
    "context_length",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
)
"""Below the architecture's name: all that an extension may touch."""


def number(value: float) -> Value:
    """A number as llama.cpp reads it, in 32 bits."""
    return Value.of(GGUFValueType.FLOAT32, value)


def count(value: int) -> Value:
    """A count as llama.cpp reads it, in 32 bits."""
    return Value.of(GGUFValueType.UINT32, value)


_NEUTRAL = {
    "rope.scale_linear": number(1.0),
    "rope.scaling.type": Value.of(GGUFValueType.STRING, "none"),
    "rope.scaling.factor": number(1.0),
    "rope.scaling.attn_factor": number(1.0),
    "rope.scaling.yarn_beta_fast": number(32.0),
    "rope.scaling.yarn_beta_slow": number(1.0),
    "rope.scaling.yarn_log_multiplier": number(0.0),
}


def write_method(
    draft: Draft,
    name: str,
    row: Architecture,
    method: Method,
    geometry: RotaryGeometry,
) -> Draft:
    """The draft with a method in it, in place of whatever scaling was there.

    Args:
        draft: The header as it stands.
        name: Its architecture.
        row: What llama.cpp does with that.
        method: What to write.
        geometry: The pretrained embedding.

    Raises:
        NotExpressibleError: llama.cpp has no words for it, with what comes nearest.
    """
    if method.grows:
        raise NotExpressibleError(
            f"{method.name} follows the length of the input, and llama.cpp fixes the rotation when "
            "a context is made; --method yarn is the nearest that it can say (short inputs then "
            "pay yarn's price), or --method ntk, what dynamic-ntk comes to at the full length."
        )
    draft = _plain(draft, name, geometry, method.target_length(geometry))
    if isinstance(method, LongRope):
        return _longrope(draft, name, row, method, geometry)
    if isinstance(method, NtkAware):
        return draft.put(_base(draft, name, row, method, geometry))
    # where such tensors stand, a 'both' takes them in under the type longrope alone
    bound = row.factors == "both" and draft.has(LONG)
    words = None if bound else _by_type(method, name, row, geometry)
    if words is not None:
        return draft.put(words)
    frequencies = method.frequencies(geometry, method.target_length(geometry))
    return _by_factors(draft, name, row, method, geometry, frequencies)


def _plain(draft: Draft, name: str, geometry: RotaryGeometry, length: int) -> Draft:
    """No scaling at all, with both lengths said."""
    # never taken out, so that the way back finds every key at its place
    stale = {f"{name}.{key}": value for key, value in _NEUTRAL.items()}
    if draft.has(LONG):
        del stale[f"{name}.rope.scaling.type"]
    draft = draft.put({k: v for k, v in stale.items() if draft.value(k) is not None})
    still = geometry.pairs - geometry.turning
    if draft.factors(FREQS) is not None:
        neutral = (1.0,) * geometry.turning + (STILL,) * still
        if draft.factors(FREQS) != neutral:
            draft = draft.with_factors(FREQS, neutral)
    for tensor in (LONG, SHORT):
        if draft.factors(tensor) is not None:
            draft = draft.with_factors(tensor, (1.0,) * geometry.pairs)
    return draft.put(
        {
            f"{name}.context_length": count(length),
            f"{name}.rope.scaling.original_context_length": count(geometry.trained_length),
        }
    )


def _by_type(
    method: Method, name: str, row: Architecture, geometry: RotaryGeometry
) -> dict[str, Value] | None:
    """The keys of a method that llama.cpp knows by name; None where its numbers do not fit."""
    if isinstance(method, PositionInterpolation):
        slowed = method.frequencies(geometry, 1).inv_freq
        stops = sum(1 for f in slowed if f) < geometry.turning
        return None if stops else _scaling(name, "linear", method.factor)
    if not isinstance(method, Yarn) or not method.truncate or geometry.turning < geometry.pairs:
        return None
    usual = (method.beta_fast, method.beta_slow) == (32.0, 1.0)
    if not usual and not row.betas:
        return None
    words = _scaling(name, "yarn", method.factor)
    if not usual:
        words |= {
            f"{name}.rope.scaling.yarn_beta_fast": number(method.beta_fast),
            f"{name}.rope.scaling.yarn_beta_slow": number(method.beta_slow),
        }
    own = method.temperature() / yarn_temperature(method.factor)
    return words | _attention(name, row, method, own)


def _scaling(name: str, word: str, factor: float) -> dict[str, Value]:
    return {
        f"{name}.rope.scaling.type": Value.of(GGUFValueType.STRING, word),
        f"{name}.rope.scaling.factor": number(factor),
    }


def _base(
    draft: Draft, name: str, row: Architecture, method: NtkAware, geometry: RotaryGeometry
) -> dict[str, Value]:
    """The larger base; layers with a window keep theirs, or follow where all turn alike."""
    base = number(float(method.rope_parameters(geometry)["rope_theta"]))
    words = {f"{name}.rope.freq_base": base}
    windowed = f"{name}.rope.freq_base_swa"
    if row.windowed == "own" and name == "olmo2":  # its windowed layers follow the base otherwise
        words[windowed] = number(geometry.theta)
    elif row.windowed == "same" and draft.value(windowed) is not None:
        words[windowed] = base
    return words


def _attention(name: str, row: Architecture, method: Method, times: float) -> dict[str, Value]:
    """llama.cpp multiplies what its type makes of cos and sin by `attn_factor`."""
    if math.isclose(times, 1.0, rel_tol=1e-9):
        return {}
    if row.windowed == "own":
        raise NotExpressibleError(
            f"llama.cpp would put {method.name}'s attention factor on the windowed layers of "
            f"'{name}' too; leave it at its default."
        )
    return {f"{name}.rope.scaling.attn_factor": number(times)}


def _longrope(
    draft: Draft, name: str, row: Architecture, method: LongRope, geometry: RotaryGeometry
) -> Draft:
    if not row.reads_long:
        raise NotExpressibleError(
            f"llama.cpp reads no long and short factors for '{name}'; "
            f"{_instead(row)} comes nearest, at that method's price at short length."
        )
    base = geometry.inverse_frequencies()
    long = method.frequencies(geometry, method.target_length(geometry))
    short = method.frequencies(geometry, 1)
    if draft.factors(FREQS) is not None and any(f != 1 for f in draft.factors(FREQS) or ()):
        raise NotExpressibleError(f"'{name}' has rope_freqs that stop pairs; longrope has not.")
    if draft.has(FREQS):
        raise NotExpressibleError(
            f"this file has a tensor {FREQS}, which llama.cpp prefers to long and short factors; "
            f"{_instead(row)} can write over it."
        )
    draft = draft.with_factors(LONG, _ratios(base, long.inv_freq))
    draft = draft.with_factors(SHORT, _ratios(base, short.inv_freq))
    words = {f"{name}.rope.scaling.type": Value.of(GGUFValueType.STRING, "longrope")}
    return draft.put(words | _attention(name, row, method, long.attention_factor))


def _by_factors(
    draft: Draft,
    name: str,
    row: Architecture,
    method: Method,
    geometry: RotaryGeometry,
    wanted: Frequencies,
) -> Draft:
    """Any fixed frequencies, as divisors of the plain ones."""
    if row.factors is None:
        raise NotExpressibleError(
            f"llama.cpp reads no per-pair factors for '{name}', which {_what(method)} needs; "
            f"{_instead(row)} comes nearest, at that method's price at short length."
        )
    if geometry.turning < geometry.pairs:
        raise NotExpressibleError(
            f"'{name}' stops {geometry.pairs - geometry.turning} of its pairs by factors of its "
            f"own; --method pi leaves them alone."
        )
    ratios = _ratios(geometry.inverse_frequencies(), wanted.inv_freq)
    long = not row.reads_freqs or draft.has(LONG)
    for tensor in (LONG, SHORT) if long else (FREQS,):
        draft = draft.with_factors(tensor, ratios)
    return draft.put(_attention(name, row, method, wanted.attention_factor))


def _ratios(base: tuple[float, ...], wanted: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(b / w if w else STILL for b, w in zip(base, wanted, strict=True))


def _what(method: Method) -> str:
    return {
        "yarn": "yarn with another ramp",
        "pi": "pi with stopped pairs",
    }.get(method.name, method.name)


def _instead(row: Architecture) -> str:
    return "--method yarn" if not row.reads_freqs else "--method llama3 or ntk-by-parts"
