"""Pictures; matplotlib is loaded when the first one is drawn."""

from ropepatch.plots.curves import (
    draw_final_loss,
    draw_loss_by_place,
    draw_perplexity,
    save_final_loss,
    save_loss_by_place,
    save_perplexity,
)
from ropepatch.plots.heat_map import draw_heat_map, save_heat_maps
from ropepatch.plots.training import draw_training, save_training
from ropepatch.plots.wavelengths import draw_wavelengths, save_wavelengths

__all__ = [
    "draw_final_loss",
    "draw_heat_map",
    "draw_loss_by_place",
    "draw_perplexity",
    "draw_training",
    "draw_wavelengths",
    "save_final_loss",
    "save_heat_maps",
    "save_loss_by_place",
    "save_perplexity",
    "save_training",
    "save_wavelengths",
]
