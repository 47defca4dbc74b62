"""Every shape by name."""

from tests.families.shapes_layered import LAYERED
from tests.families.shapes_other import OTHER
from tests.families.shapes_plain import PLAIN, Shape
from tests.families.shapes_qwen import QWEN
from tests.families.shapes_resaved import RESAVED
from tests.families.shapes_resaved_nested import NESTED

PUBLISHED: dict[str, Shape] = PLAIN | QWEN | OTHER | LAYERED
SHAPES: dict[str, Shape] = PUBLISHED | RESAVED | NESTED
