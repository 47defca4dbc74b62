"""The loss of sequences that are not trained on, packed and read as those that are."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ropepatch.healing.loss import Weights, summed_loss
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.rows import Collate, Rows
from ropepatch.healing.store import About, Store
from ropepatch.healing.student import Pin, head_of, read


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A few sequences, always the same."""

    rows: tuple[Mapping[str, Any], ...]
    lengths: tuple[int, int]
    """Tokens of a sequence: within the window of pretraining, and as long as any."""
    restart: bool

    @classmethod
    def of(cls, plan: HealPlan, store: Store, short_len: int) -> "HeldOut":
        """What the store holds out; nothing where its data are too few."""
        ids = store.held_out
        ends = store.ends[store.ends > store.about.tokens] - store.about.tokens
        short = min(short_len, plan.seq_len)
        restart = plan.packing == "restart"
        if not len(ids):
            return cls((), (short, plan.seq_len), restart)
        about = About(len(ids), 0, len(ends), 0, 0, True, "")
        found = Rows(plan, Store(ids, np.asarray(ends), about), short)
        # long documents are packed first, so equal steps take some of every length
        count = min(plan.check_windows, found.sequences)
        chosen = np.linspace(0, found.sequences - 1, count).round().astype(int)
        rows = tuple(found.row(int(i)) for i in chosen)
        return cls(rows, (short, plan.seq_len), restart)

    def losses(self, model: Any, pin: Pin | None) -> dict[str, float]:
        """Nats per token, by the names of `goals.METRICS`.

        Args:
            model: Of transformers; it is left as it was.
            pin: Holds it to the frequencies of one length, if they follow the length.
        """
        if not self.rows:
            return {}
        training = model.training
        model.eval()
        try:
            short, long = (self._loss(model, pin, length) for length in self.lengths)
        finally:
            model.train(training)
        return {"loss": long, "loss_short": short}

    @torch.no_grad()
    def _loss(self, model: Any, pin: Pin | None, length: int) -> float:
        head, block = head_of(model)
        device = model.get_input_embeddings().weight.device
        collate = Collate(restart=self.restart)
        nats, count = 0.0, 0
        for row in self.rows:
            whole = len(row["input_ids"]) // length * length
            cut = {
                key: value[:whole] if torch.is_tensor(value) else length
                for key, value in row.items()
            }
            batch = {key: value.to(device) for key, value in collate([cut]).items()}
            labels = batch["shift_labels"]
            with pin(length) if pin else nullcontext():
                if head is None:
                    output = model(input_ids=batch["input_ids"], use_cache=False).logits.float()
                    flat = output.flatten(0, 1)
                    total = torch.nn.functional.cross_entropy(
                        flat, labels.flatten(), reduction="sum"
                    )
                else:
                    states = read(
                        model, batch["input_ids"], batch.get("position_ids"), layers=False
                    )
                    total = summed_loss(states, head, labels, Weights(), block=block)
            nats += float(total)
            count += int((labels >= 0).sum())
        return nats / max(count, 1)
