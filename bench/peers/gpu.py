"""Training steps and attention in PyTorch and in JAX on one GPU, or for tests on the CPU.

A step is that of lib/gpt's model with AdamW, from the same initial weights and tokens: float32 master weights, which are
cast to bfloat16 for the passes, residual stream and matmuls in bfloat16, normalizations, rotations and the loss in
float32. Each library computes it as its users would:

- JAX: jit of the full step, its state donated, the layers unrolled, attention by jax.nn.dot_product_attention with
  cuDNN.
- PyTorch: an nn.Module under autocast, attention by scaled_dot_product_attention with one backend, and the fused AdamW;
  eager, or the model through torch.compile in its default mode.

Both may run ahead of the device: they wait for it at the end of a sample.
"""
import argparse
import math
import time
from types import SimpleNamespace

import numpy as np

from common import hashes, uniform
from train import BETA1, BETA2, DECAY, EPSILON, FIRST, RATE, Trainer, jax_cross_entropy, jax_step_of, weights
from worker import serve

TOKENS = 1 << 20  # the index of the first batch's random numbers; parameters have those from 0
ROTARY = 10000  # the base of the angles, as in lib/gpt
BYTES = {"fp32": "float32", "bf16": "bfloat16"}


def batch(size, step):
    """Inputs and targets: tokens of about Zipf's distribution, as in gpu_case.go."""
    h = hashes(TOKENS + step, size.batch * (size.seq + 1))
    most = np.uint64(1) << h % np.uint64(size.vocab.bit_length())
    tokens = ((h >> np.uint64(32)) % most).astype(np.int64).reshape(size.batch, -1)
    return tokens[:, :-1], tokens[:, 1:]


class Steps(Trainer):
    """A subclass has build(size, weights), place(tokens), launch(inputs, targets) -> the loss, which need not be there
    yet, and wait(loss) -> a number, when all of the step is done; memory() is that of Jax or Torch."""

    def prepare(self, case):
        none = dict(kv_heads=0, hidden=0, gated=False, norm="", positions="", no_bias=False, tied=False)
        size = SimpleNamespace(**none | case)
        size.d, size.kv_heads, size.hidden = size.width, size.kv_heads or size.heads, size.hidden or 4 * size.width
        self.build(size, weights(size))
        return self.first([self.place(tokens) for tokens in batch(size, step)] for step in range(FIRST))

    def step(self, inputs, targets):
        return self.wait(self.launch(inputs, targets))

    def sample(self, calls):
        self.step(*self.batch)
        begin = time.perf_counter()
        for _ in range(calls):
            loss = self.launch(*self.batch)
        self.wait(loss)
        return (time.perf_counter() - begin) * 1e3 / calls


class Attention:
    """Causal attention and its gradients for a given gradient of the output. A subclass has place(array), build(case,
    operands) -> a function that returns the output and the gradients of queries, keys and values, wait(results),
    read(result, stride) -> every stride-th element in float32, and memory()."""

    def __init__(self):
        self.arrays = {}

    def prepare(self, case):
        case = SimpleNamespace(**case)
        operands = []
        for number in (0, 1, 2, 4):  # queries, keys, values and the output's gradient; 3 is for fingerprints
            heads = case.kv_heads if number in (1, 2) else case.heads
            shape = (case.batch, case.tokens, heads, case.width)
            key = number, math.prod(shape)
            if key not in self.arrays:
                self.arrays[key] = uniform(*key)
            operands.append(self.place(self.arrays[key].reshape(shape), BYTES[case.precision]))
        self.call = self.build(case, operands)
        begin = time.perf_counter()
        results = self.wait(self.call())
        took = time.perf_counter() - begin
        return {"values": [self.fingerprint(r) for r in results], "first_ms": took * 1e3, "memory": self.memory()}

    def fingerprint(self, result):
        """That of gpu_case.go."""
        size = math.prod(result.shape)
        count = min(size, 1 << 20)
        part = self.read(result, size // count)[:count].astype(np.float64)
        return float(uniform(3, count).astype(np.float64) @ part / math.sqrt(count))

    def sample(self, calls):
        self.wait(self.call())
        begin = time.perf_counter()
        for _ in range(calls):
            results = self.call()
        self.wait(results)
        return (time.perf_counter() - begin) * 1e3 / calls

    def finish(self):
        del self.call


class Jax:
    """What JAX's steps and attention share."""

    def start(self, device):
        import jax

        self.jax, self.device = jax, jax.devices()[0]
        if self.device.platform != {"cuda": "gpu"}.get(device, device):
            raise RuntimeError(f"JAX has {self.device}, not {device}")

    def attend(self, q, k, v):
        fused = self.device.platform == "gpu" and q.dtype != np.float32
        return self.jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn" if fused else None)

    def memory(self):
        plan = self.program.memory_analysis()
        stats = self.device.memory_stats() or {}  # XLA's CPUs have none
        return {
            "arg_bytes": plan.argument_size_in_bytes,
            "out_bytes": plan.output_size_in_bytes - plan.alias_size_in_bytes,
            "temp_bytes": plan.temp_size_in_bytes,
            "device_peak_bytes": stats.get("peak_bytes_in_use", 0),
        }


class JaxSteps(Jax, Steps):
    def build(self, size, first):
        jax = self.jax
        self.state = None
        w = jax.device_put(first, self.device)
        m, v = (jax.tree.map(jax.numpy.zeros_like, w) for _ in range(2))
        self.state = jax.block_until_ready((w, m, v, jax.device_put(np.float32(0), self.device)))
        self.jit = jax.jit(self.step_of(size), donate_argnums=0)
        self.program = None

    def step_of(self, size):
        jax, jnp = self.jax, self.jax.numpy
        half = jnp.dtype(BYTES[size.precision])
        width = size.d // size.heads

        def loss_of(master, inputs, targets):
            w = jax.tree.map(lambda x: x.astype(half), master)

            def norm(x, name):
                y, g = x.astype(jnp.float32), master[name + ".g"]
                if size.norm != "rmsnorm":
                    y = y - y.mean(-1, keepdims=True)
                y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5) * g
                return (y if size.norm == "rmsnorm" else y + master[name + ".b"]).astype(half)

            def linear(x, name):
                y = x @ w[name + ".w"]
                return y if size.no_bias else y + w[name + ".b"]

            def rotate(x):
                half_width = width // 2
                frequency = jnp.exp(jnp.arange(half_width) * (-2 * math.log(ROTARY) / width))
                angle = (jnp.arange(size.seq)[:, None] * frequency)[:, None, :]
                cos, sin = jnp.cos(angle), jnp.sin(angle)
                a, b = jnp.split(x.astype(jnp.float32), 2, -1)
                return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(half)

            x = master["tok"][inputs]  # in float32, as the sum of its gradients
            if size.positions != "rotary":
                x = x + master["pos"]
            x = x.astype(half)
            for i in range(size.layers):
                block = f"h{i}."
                qkv = linear(norm(x, block + "ln1"), block + "qkv").reshape(*x.shape[:2], -1, width)
                q, k, v = jnp.split(qkv, [size.heads, size.heads + size.kv_heads], 2)
                if size.positions == "rotary":
                    q, k = rotate(q), rotate(k)
                x = x + linear(self.attend(q, k, v).reshape(x.shape), block + "o")
                y = norm(x, block + "ln2")
                if size.gated:
                    y = jax.nn.silu(linear(y, block + "gate")) * linear(y, block + "up")
                else:
                    y = jax.nn.gelu(linear(y, block + "up"))
                x = x + linear(y, block + "down")
            scores = (norm(x, "lnf") @ (w["tok"].T if size.tied else w["head.w"])).astype(jnp.float32)
            return jax_cross_entropy(scores, targets)

        return jax_step_of(loss_of)

    def place(self, tokens):
        return self.jax.block_until_ready(self.jax.device_put(tokens.astype(np.int32), self.device))

    def launch(self, inputs, targets):
        if self.program is None:
            self.program = self.jit.lower(self.state, inputs, targets).compile()
        self.state, loss = self.program(self.state, inputs, targets)
        return loss

    def wait(self, loss):
        self.jax.block_until_ready(self.state)
        return float(loss)


class JaxAttention(Jax, Attention):
    def place(self, array, dtype):
        return self.jax.block_until_ready(self.jax.device_put(array.astype(self.jax.numpy.dtype(dtype)), self.device))

    def build(self, case, operands):
        def both(q, k, v, gradient):
            out, backward = self.jax.vjp(self.attend, q, k, v)
            return [out, *backward(gradient)]

        self.program = None
        jit = self.jax.jit(both)

        def call():
            if self.program is None:
                self.program = jit.lower(*operands).compile()
            return self.program(*operands)

        return call

    def wait(self, results):
        return self.jax.block_until_ready(results)

    def read(self, result, stride):
        return np.asarray(result.reshape(-1)[::stride].astype(np.float32))


class Torch:
    """What PyTorch's steps and attention share. backend is that of scaled_dot_product_attention on a GPU."""

    def start(self, device, backend):
        import torch

        self.torch, self.device = torch, torch.device(device)
        torch.set_float32_matmul_precision("highest")  # as JAX and lib/xla compute float32 by default
        if device == "cuda":
            torch.cuda.init()
            switches = torch.backends.cuda
            switches.enable_math_sdp(False)
            switches.enable_mem_efficient_sdp(False)
            switches.enable_flash_sdp(backend == "flash")
            switches.enable_cudnn_sdp(backend == "cudnn")

    def place_float(self, array, dtype):
        return self.torch.from_numpy(array).to(self.device, getattr(self.torch, dtype))

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def forget(self):
        """Begin a case with the memory of earlier ones freed."""
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def memory(self):
        return {"device_peak_bytes": self.torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0}


class TorchSteps(Torch, Steps):
    def __init__(self, compiles):
        self.compiles = compiles

    def build(self, size, first):
        torch = self.torch
        self.model = self.run = self.optimizer = None
        self.forget()
        with self.device:
            self.model = torch_model(size)
        values = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in first.items():
                path, _, kind = name.rpartition(".")
                value = torch.from_numpy(value)
                if not path:  # a table
                    values[name + ".weight"].copy_(value)
                elif kind == "w":  # a Linear keeps (out, in)
                    values[path + ".weight"].copy_(value.T)
                else:
                    values[path + {"g": ".weight", "b": ".bias"}[kind]].copy_(value)
        self.run = torch.compile(self.model) if self.compiles else self.model
        self.half = size.precision != "fp32"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=DECAY, fused=True)

    def place(self, tokens):
        return self.torch.from_numpy(np.ascontiguousarray(tokens)).to(self.device)

    def launch(self, inputs, targets):
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.autocast(self.device.type, self.torch.bfloat16, enabled=self.half):
            loss = self.run(inputs, targets)
        loss.backward()
        self.optimizer.step()
        return loss

    def wait(self, loss):
        self.synchronize()
        return loss.item()


class TorchAttention(Torch, Attention):
    def place(self, array, dtype):
        return self.place_float(array, dtype)

    def build(self, case, operands):
        torch = self.torch
        self.forget()
        *inputs, gradient = operands
        for operand in inputs:
            operand.requires_grad_()
        grouped = case.heads != case.kv_heads

        def call():
            q, k, v = (x.transpose(1, 2) for x in inputs)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            out = out.transpose(1, 2)
            return [out, *torch.autograd.grad(out, inputs, gradient)]

        return call

    def wait(self, results):
        self.synchronize()
        return results

    def read(self, result, stride):
        return result.detach().reshape(-1)[::stride].float().cpu().numpy()


def torch_model(size):
    """The model with the names of lib/gpt's parameters. It returns the loss."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    d, width = size.d, size.d // size.heads
    half = getattr(torch, BYTES[size.precision])

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(d))
            if size.norm != "rmsnorm":
                self.bias = nn.Parameter(torch.zeros(d))

        def forward(self, x):
            if size.norm == "rmsnorm":
                return F.rms_norm(x.float(), (d,), self.weight, 1e-5).to(half)
            return F.layer_norm(x.float(), (d,), self.weight, self.bias, 1e-5).to(half)

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=not size.no_bias)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = Norm(), Norm()
            self.qkv, self.o = linear(d, (size.heads + 2 * size.kv_heads) * width), linear(d, d)
            if size.gated:
                self.gate = linear(d, size.hidden)
            self.up, self.down = linear(d, size.hidden), linear(size.hidden, d)

        def forward(self, x, cos, sin):
            qkv = self.qkv(self.ln1(x)).unflatten(-1, (-1, width))
            q, k, v = qkv.split([size.heads, size.kv_heads, size.kv_heads], 2)
            if size.positions == "rotary":
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            grouped = size.heads != size.kv_heads
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            x = x + self.o(mixed.transpose(1, 2).flatten(2))
            y = self.ln2(x)
            if size.gated:
                y = F.silu(self.gate(y)) * self.up(y)
            else:
                y = F.gelu(self.up(y), approximate="tanh")
            return x + self.down(y)

    def rotate(x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(half)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(size.vocab, d)
            if size.positions != "rotary":
                self.pos = nn.Embedding(size.seq, d)
            self.blocks = [Block() for _ in range(size.layers)]
            for i, block in enumerate(self.blocks):
                self.add_module(f"h{i}", block)
            self.lnf, self.head = Norm(), nn.Linear(d, size.vocab, bias=False)
            if size.tied:
                self.head.weight = self.tok.weight
            frequency = torch.exp(torch.arange(width // 2) * (-2 * math.log(ROTARY) / width))
            angle = (torch.arange(size.seq)[:, None] * frequency)[:, None, :]
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

        def forward(self, inputs, targets):
            x = self.tok(inputs)
            if size.positions != "rotary":
                x = x + self.pos.weight
            x = x.to(half)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            scores = self.head(self.lnf(x)).float()
            return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    return Model()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["train", "attention"])
    parser.add_argument("library", choices=["jax", "torch", "torch-compile"])
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--sdpa", choices=["cudnn", "flash"], default="cudnn")
    a = parser.parse_args()
    if a.library == "jax":
        subject = JaxSteps() if a.what == "train" else JaxAttention()
        subject.start(a.device)
    else:
        subject = TorchSteps(a.library == "torch-compile") if a.what == "train" else TorchAttention()
        subject.start(a.device, a.sdpa)
    serve(subject)


if __name__ == "__main__":
    main()
