"""Valid parameters of every method, for a head of 64 features: the rows that tests run over.

Each dictionary makes both `METHODS[name](**parameters)` and `Recipe.named(name, **parameters)`,
and stays valid wherever 32 pairs turn.
"""

from typing import Any

RISING = [1.0 + i / 8 for i in range(32)]
"""A list of LongRoPE divisors: no two alike, so that a swapped index shows."""

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "yarn": [
        {"factor": 4.0},
        {"factor": 8.0, "beta_fast": 128.0, "beta_slow": 2.0, "attention_factor": 1.25},
        {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0},
        {"factor": 32.0, "truncate": False},
    ],
    "pi": [
        {"factor": 2.0},
        {"factor": 8.0, "keep": 0.75},
        {"factor": 4.0, "keep": "auto"},
    ],
    "ntk": [{"factor": 1.5}, {"factor": 8.0}],
    "dynamic-ntk": [{"factor": 4.0}, {"factor": 4.0, "ntk_factor": 4.0}],
    "dynamic-yarn": [
        {"factor": 4.0},
        {
            "factor": 8.0,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "tuned_factor": 4.0,
        },
    ],
    "ntk-by-parts": [{"factor": 4.0}, {"factor": 8.0, "alpha": 2.0, "beta": 16.0}],
    "llama3": [
        {"factor": 8.0},
        {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
    ],
    "longrope": [
        {"factor": 4.0, "long_factor": RISING},
        {
            "factor": 8.0,
            "long_factor": RISING[::-1],
            "short_factor": [1.0 + i / 64 for i in range(32)],
            "attention_factor": 1.25,
        },
    ],
    "p-rope": [{}, {"keep": 0.75}, {"factor": 2.0, "keep": 0.5}],
}
