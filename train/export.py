"""Writes Mimir as GGUF: matrices as Q8_0, norms as F32. `python3 train/export.py .cache/mimir models/mimir.gguf`"""

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from model import Config
from tokenizer import BEGIN, END, SPECIAL, Tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}{{ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TYPE_F32, TYPE_Q8_0, ALIGNMENT = 0, 8, 32
NORMAL, CONTROL = 1, 3


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    if kind == STRING:
        return string(content)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], content)


def entry(key, kind, content):
    if isinstance(content, list):
        items = b"".join(value(kind, item) for item in content)
        return string(key) + struct.pack("<IIQ", ARRAY, kind, len(content)) + items
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def metadata(c, tokenizer):
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "Mimir"),
        entry("general.license", STRING, "apache-2.0"),
        entry("general.file_type", U32, 7),
        entry("general.quantization_version", U32, 2),
        entry("llama.block_count", U32, c.layers),
        entry("llama.context_length", U32, c.context),
        entry("llama.embedding_length", U32, c.width),
        entry("llama.feed_forward_length", U32, c.ffn),
        entry("llama.attention.head_count", U32, c.heads),
        entry("llama.attention.head_count_kv", U32, c.kv_heads),
        entry("llama.attention.key_length", U32, c.head_dim),
        entry("llama.attention.value_length", U32, c.head_dim),
        entry("llama.attention.layer_norm_rms_epsilon", F32, c.eps),
        entry("llama.rope.freq_base", F32, c.rope_base),
        entry("llama.rope.dimension_count", U32, c.head_dim),
        entry("llama.vocab_size", U32, c.vocab),
        entry("tokenizer.ggml.model", STRING, "gpt2"),
        entry("tokenizer.ggml.pre", STRING, "gpt-2"),
        entry("tokenizer.ggml.tokens", STRING, tokenizer.tokens),
        entry("tokenizer.ggml.token_type", I32, [CONTROL if t in SPECIAL else NORMAL for t in tokenizer.tokens]),
        entry("tokenizer.ggml.merges", STRING, [" ".join(pair) for pair in tokenizer.merges]),
        entry("tokenizer.ggml.bos_token_id", U32, BEGIN),
        entry("tokenizer.ggml.eos_token_id", U32, END),
        entry("tokenizer.ggml.add_bos_token", BOOL, True),
        entry("tokenizer.chat_template", STRING, TEMPLATE),
    ]


def q8_0(matrix):
    """Blocks of 32: an f16 scale, then 32 int8."""
    blocks = matrix.reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    codes = np.round(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)).astype(np.int8)
    out = np.empty((len(blocks), 34), dtype=np.uint8)
    out[:, :2] = scale.astype(np.float16).view(np.uint8)
    out[:, 2:] = codes.view(np.uint8)
    return out.tobytes()


def tensors(state):
    for name, tensor in state.items():
        full = name if name.endswith(".weight") else f"{name}.weight"
        array = tensor.float().numpy()
        if array.ndim == 2:
            yield full, array.shape[::-1], TYPE_Q8_0, q8_0(array)
        else:
            yield full, array.shape, TYPE_F32, array.astype("<f4").tobytes()


def padding(length):
    return b"\0" * (-length % ALIGNMENT)


def export(folder, path):
    entries = metadata(Config(), Tokenizer.load(folder / "merges.json"))
    state = torch.load(folder / "mimir.pt", map_location="cpu", weights_only=True)
    infos, data = [], b""
    for name, shape, kind, content in tensors(state):
        infos.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data)))
        data += content + padding(len(content))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries)) + b"".join(entries) + b"".join(infos)
    path.write_bytes(head + padding(len(head)) + data)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
