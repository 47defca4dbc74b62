"""Makes the turnings of one rotary module: which frequencies, for which regime."""

from collections.abc import Mapping

import torch

from ropepatch.config_json.layout import Schedule
from ropepatch.errors import NotExpressibleError, UnsupportedModelError
from ropepatch.geometry import Frequencies
from ropepatch.methods.base import Method
from ropepatch.model.turning import Turn, layout_of, stock_numbers, table_of


class TurnMaker:
    """For one stock module; pure in label and regime."""

    def __init__(
        self,
        stock: torch.nn.Module,
        labels: tuple[str, ...],
        schedules: Mapping[str, Schedule],
        methods: Mapping[str, Method],
        *,
        exact: bool,
    ) -> None:
        """Look at the stock module.

        Args:
            stock: The module transformers built.
            labels: Of the schedules it holds.
            schedules: Of the whole model, by label.
            methods: By label, those that change.
            exact: Whether the pretrained frequencies stay up to the trained length.

        Raises:
            UnsupportedModelError: it does not turn by its inverse frequencies.
        """
        learned = [name for name, _ in stock.named_parameters()]
        if learned:
            raise UnsupportedModelError(
                f"{type(stock).__name__} has trained parameters of its own ({learned[0]}), which a "
                "patch would take out of the model; write the change with ropepatch.extend."
            )
        self.stock = stock
        self.schedules = dict(schedules)
        self.methods = dict(methods)
        self.exact = exact
        self.layouts = {}
        self.numbers = {}
        for label in labels:
            table, factor = stock_numbers(stock, label)
            self.numbers[label] = (table.detach().clone(), factor)
            if table.is_meta:
                base = self.schedules[label].geometry.inverse_frequencies()
                table = torch.tensor(base, dtype=torch.float64)
            self.layouts[label] = layout_of(stock, label, table.float())

    def frequencies(self, label: str, regime: int) -> Frequencies:
        """In float64; a regime is the length whose frequencies are in force."""
        geometry = self.schedules[label].geometry
        if self.exact and regime <= geometry.trained_length:
            return geometry.base_frequencies()
        return self.methods[label].frequencies(geometry, regime)

    def __call__(self, label: str, regime: int) -> Turn:
        """The turning of a schedule that changes."""
        base = self.schedules[label].geometry.base_frequencies()
        table, factor = table_of(self.frequencies(label, regime), base, self.numbers[label][0])
        return Turn(table, factor, self.layouts[label], self.stock, label)

    def unchanged(self, label: str) -> Turn:
        """The turning of a schedule that stays as it is.

        Raises:
            NotExpressibleError: it follows the length, so it is no one set of frequencies.
        """
        method = self.schedules[label].method
        if method is not None and method.length_dependent:
            raise NotExpressibleError(
                f"the {label} layers are already scaled by '{method.name}', which follows the "
                "length and cannot stand still beside a patch; use layers='all', replace=True."
            )
        table, factor = self.numbers[label]
        if table.is_meta:
            frequencies = self.schedules[label].frequencies(1)
            table = torch.tensor(frequencies.inv_freq, dtype=torch.float64)
            factor = frequencies.attention_factor
        return Turn(table.float(), factor, self.layouts[label], self.stock, label)
