"""Models that something else has wrapped, dispatched, adapted or quantised."""

import copy
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import ropepatch
from ropepatch import patch_of
from ropepatch.errors import CacheError
from tests.live.subjects import (
    ALL,
    DYNAMIC,
    STATIC,
    Case,
    close,
    in_chunks,
    make,
    patched,
    read,
    text,
    traces,
)

IDS = text(150)


def wanted_of(case: Case) -> torch.Tensor:
    with patched(make(), case) as handle:
        return read(handle.model, IDS)


class Holder(torch.nn.Module):
    """What DDP and the like do: hold a model and hand everything on."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, *args: Any, **words: Any) -> Any:
        return self.module(*args, **words)


@ALL
@pytest.mark.parametrize("wrap", [Holder, torch.nn.DataParallel])
def test_modules_that_hold_a_model(case: Case, wrap: Any) -> None:
    model = make()
    base, before = read(model, IDS), traces(model)
    outer = wrap(Holder(model))
    with patched(outer, case) as handle:
        assert patch_of(outer) is patch_of(model) is handle
        assert patched(model, case) is handle
        close(read(outer, IDS), wanted_of(case))
    assert traces(model) == before
    assert torch.equal(read(outer, IDS), base)


# --- accelerate ---------------------------------------------------------------------------------

MAPS: dict[str, dict[str, str]] = {
    "disk": {
        "model.embed_tokens": "cpu",
        "model.layers.0": "disk",
        "model.layers.1": "cpu",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "disk",
    },
    "all on disk": {"model": "disk", "lm_head": "disk"},
}


@ALL
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("places", ["disk", pytest.param("all on disk", marks=pytest.mark.slow)])
def test_dispatched_models(case: Case, order: str, places: str, tmp_path: Path) -> None:
    from accelerate import dispatch_model

    model = make()
    base = read(model, IDS)

    def dispatch() -> None:
        dispatch_model(
            model,
            device_map=MAPS[places],
            main_device="cpu",
            offload_dir=str(tmp_path),
            force_hooks=True,
        )

    if order == "before":
        dispatch()
    handle = patched(model, case)
    if order == "after":
        dispatch()
    close(read(model, IDS), wanted_of(case))
    close(in_chunks(model, IDS, 20), wanted_of(case))
    handle.describe()
    handle.revert()
    close(read(model, IDS), base)
    assert patch_of(model) is None


@ALL
@pytest.mark.parametrize("kind", ["cpu_offload", "disk_offload"])
def test_offloaded_models(case: Case, kind: str, tmp_path: Path) -> None:
    import accelerate

    model = make()
    base = read(model, IDS)
    words: dict[str, Any] = {"execution_device": torch.device("cpu")}
    if kind == "disk_offload":
        words["offload_dir"] = str(tmp_path)
    getattr(accelerate, kind)(model, **words)
    with patched(model, case):
        close(read(model, IDS), wanted_of(case))
        close(in_chunks(model, IDS, 20), wanted_of(case))
    close(read(model, IDS), base)


@ALL
def test_a_folder_loaded_with_a_device_map(case: Case, tmp_path: Path) -> None:
    with patched(make(), case) as handle:
        handle.model.save_pretrained(tmp_path / "saved")
    places = MAPS["disk"]
    model = ropepatch.load(
        tmp_path / "saved",
        dtype=torch.float32,
        device_map=places,
        offload_folder=str(tmp_path / "parts"),
    )
    close(read(model.eval(), IDS), wanted_of(case))


# --- PEFT ---------------------------------------------------------------------------------------


OLD_WORDS = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
"""That PEFT has for transformers."""


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    return peft.get_peft_model(model, config).eval()


@OLD_WORDS
@ALL
def test_adapters_stay(case: Case) -> None:
    base = make()
    outer = adapted(copy.deepcopy(base))
    before = read(outer, IDS)
    names = list(outer.state_dict())
    with patched(base, case):
        twin = adapted(base)  # the other way round: the adapter comes after the patch
        with patched(outer, case) as handle:
            found = read(outer, IDS)
            assert list(outer.state_dict()) == names
            assert type(handle.model).__name__ == "LlamaForCausalLM"
            assert torch.equal(found, read(twin, IDS))
            assert not torch.allclose(found, before, atol=0.05)
            with outer.disable_adapter():
                close(read(outer, IDS), wanted_of(case))
            ids = torch.ones_like(IDS)
            assert outer.generate(input_ids=IDS, attention_mask=ids, max_new_tokens=2).shape == (
                1,
                152,
            )
    assert torch.equal(read(outer, IDS), before)
    assert patch_of(twin) is None


@OLD_WORDS
@ALL
def test_merging_adapters_keeps_the_patch(case: Case) -> None:
    outer = adapted(make())
    with patched(outer, case) as handle:
        found = read(outer, IDS)
        merged = outer.merge_and_unload()
        assert patch_of(merged) is handle
        close(read(merged, IDS), found, 1e-3)


@OLD_WORDS
def test_training_an_adapter_on_a_patched_base() -> None:
    outer = adapted(make()).train()
    with patched(outer, DYNAMIC):
        outer(input_ids=IDS, labels=IDS).loss.backward()
    trained = [name for name, value in outer.named_parameters() if value.grad is not None]
    assert len(trained) == 8
    assert all("lora" in name for name in trained)


# --- quantised weights --------------------------------------------------------------------------


@ALL
def test_quantised_linear_layers(case: Case) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = make()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    base = read(model, IDS)
    with patched(model, case) as handle:
        found = read(model, IDS)
        handle.describe()
        assert not torch.allclose(found, base, atol=0.05)
        assert (found - wanted_of(case)).abs().mean() < 0.3
        close(in_chunks(model, IDS, 20), found, 1e-3)
    assert torch.equal(read(model, IDS), base)


def test_quantised_by_quanto() -> None:
    quanto = pytest.importorskip("optimum.quanto")
    model = make()
    quanto.quantize(model, weights=quanto.qint8)
    quanto.freeze(model)
    base = read(model, IDS)
    with patched(model, STATIC):
        assert (read(model, IDS) - wanted_of(STATIC)).abs().mean() < 0.3
    assert torch.equal(read(model, IDS), base)


# --- serving ------------------------------------------------------------------------------------


def in_one_batch(model: Any, prompts: list[torch.Tensor]) -> list[Any]:
    """By continuous batching, as `transformers serve` does it."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    found = model.generate_batch(
        inputs=[one[0].tolist() for one in prompts],
        generation_config=GenerationConfig(
            max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=256, page_size=16
        ),
        progress_bar=False,
    )
    return [found[key] for key in sorted(found)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [None, STATIC, DYNAMIC], ids=["plain", "yarn", "dynamic-ntk"])
def test_continuous_batches_are_served_or_refused_by_name(case: Case | None) -> None:
    """A static patch needs nothing of the cache; a dynamic one needs a pinned length."""
    model: Any = make()
    model.generation_config.eos_token_id = None
    prompts = [text(50), text(60, seed=1)]
    handle = None if case is None else patched(model, case)

    def pin() -> AbstractContextManager[Any]:
        return nullcontext() if handle is None else handle.pinned(200)

    if case is DYNAMIC:
        with pytest.raises(CacheError, match="pinned"):
            in_one_batch(model, prompts)
    with pin():
        answers = in_one_batch(model, prompts)
    for one, answer in zip(prompts, answers, strict=True):
        with pin():
            wanted = model.generate(
                one, attention_mask=torch.ones_like(one), max_new_tokens=20, do_sample=False
            )
        assert not answer.error
        assert answer.generated_tokens == wanted[0, one.shape[1] :].tolist()
