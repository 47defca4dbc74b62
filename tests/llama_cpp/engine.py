"""llama.cpp itself, through llama-cpp-python, in float32 all the way; skipped where it is absent.

    CMAKE_ARGS=-DGGML_NATIVE=OFF pip install llama-cpp-python

It is built from source, in ten minutes on two cores. "Native" builds stop with an illegal
instruction on virtual machines that announce more than they allow.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

Logits = npt.NDArray[np.float32]

F32 = 0
"""ggml's number of the element type, for keys and values."""


def float32_copy(source: Path, target: Path) -> Path:
    """The same model with every tensor dequantised to float32, everything else as it is.

    Quantised tensors make llama.cpp round activations too: a change of 1e-7 in an angle then
    moves logits by about 1, and nothing fine can be compared.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def last_logits(file: Path, tokens: list[int], places: list[int], context: int) -> list[Logits]:
    """What llama.cpp says after each of the first `places` tokens, read on with its own cache."""
    llama_cpp = pytest.importorskip("llama_cpp")
    model: Any = llama_cpp.Llama(
        model_path=str(file),
        n_ctx=context,
        n_batch=512,
        n_threads=2,
        n_threads_batch=2,
        flash_attn=False,
        type_k=F32,
        type_v=F32,
        verbose=False,
        yarn_attn_factor=-1.0,  # else the binding's own numbers stand before the file's
        yarn_beta_fast=-1.0,
        yarn_beta_slow=-1.0,
    )
    found: list[Logits] = []
    done = 0
    for place in places:
        model.eval(tokens[done:place])
        done = place
        pointer = model._ctx.get_logits()
        found.append(np.ctypeslib.as_array(pointer, shape=(model.n_vocab(),)).copy())
    model.close()
    return found
