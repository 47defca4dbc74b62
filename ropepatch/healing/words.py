"""Words that a plan chooses among."""

from typing import Literal

Packing = Literal["restart", "continue", "single"]
Schedule = Literal["linear", "cosine", "constant"]
Precision = Literal["auto", "float32", "bfloat16"]
