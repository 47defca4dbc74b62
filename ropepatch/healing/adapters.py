"""Adapters on the attention, with the small weights beside them that long contexts need.

LongLoRA (arXiv:2309.12307, section 3.3): low-rank adapters alone leave a gap at long range, which
closes when embeddings and norms, a few per cent of the weights, are trained as well.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ropepatch.errors import HealingError
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.trainable import attention_linears, norms


def with_adapters(model: Any, plan: HealPlan) -> Any:
    """The model wrapped by PEFT, adapters put into its attention.

    Args:
        model: Of transformers; its own modules are changed in place.
        plan: Rank, scale, and what is trained beside them.

    Raises:
        HealingError: no linear layer is found in an attention.
    """
    from peft import LoraConfig, get_peft_model

    if plan.lora is None:
        raise HealingError("adapters need a rank; give --lora.")
    linears = attention_linears(model)
    others = (
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name not in linears
    )
    leaves = _leaves(linears)
    saved = list(norms(model)) if plan.train_norms else []
    words: dict[str, Any] = {}
    if plan.train_embeddings:
        embedding = model.get_input_embeddings()
        saved += [name for name, module in model.named_modules() if module is embedding]
        words["ensure_weight_tying"] = bool(
            getattr(model.config.get_text_config(decoder=True), "tie_word_embeddings", False)
        )
    endings = tuple(_leaves(saved))  # PEFT takes whatever ends like that
    elsewhere = any(n.endswith(endings) for n, _ in model.named_modules() if n not in saved)
    config = LoraConfig(
        r=plan.lora,
        lora_alpha=int(plan.lora_alpha or 2 * plan.lora),
        lora_dropout=0.0,
        target_modules=sorted(linears) if set(leaves) & set(_leaves(others)) else leaves,
        modules_to_save=(sorted(saved) if elsewhere else list(endings)) or None,
        task_type="CAUSAL_LM",
        **words,
    )
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    wrapped = get_peft_model(model, config)
    if tied and plan.train_embeddings:
        own: Any = wrapped.get_base_model()
        ends = own.get_input_embeddings(), own.get_output_embeddings()
        first, last = (getattr(end, "modules_to_save", {"default": end})["default"] for end in ends)
        if first.weight is not last.weight:
            raise HealingError(
                f"PEFT would untie the embeddings of this {type(model).__name__} from its head; "
                "leave them as they are (--keep-embeddings), or train all weights (--full)."
            )
    for parameter in wrapped.parameters():
        if parameter.requires_grad:  # what is trained is kept exactly, however its base is kept
            parameter.data = parameter.data.float()
    return wrapped


def applied(model: Any, adapter: Path) -> Any:
    """The model with an adapter around it; `merge_and_unload` puts that into its weights.

    Raises:
        HealingError: the folder holds no adapter that fits.
    """
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=False)
    except Exception as error:  # of PEFT, of safetensors, of a config that is none
        reason = " ".join(str(error).split())[:300]
        raise HealingError(f"the adapter {adapter} does not fit the model: {reason}") from error


def _leaves(names: Iterable[str]) -> list[str]:
    return sorted({name.rpartition(".")[2] for name in names})
