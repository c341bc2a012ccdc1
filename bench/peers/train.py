"""Training steps of the reference model in JAX and in PyTorch, on one device, data-parallel or tensor-parallel.

The model is that of lib/gpt, from the same initial weights, on the same text.
"""
import argparse
import math
import re
import time
from types import SimpleNamespace

import numpy as np

from common import forget_peak, peak, uniform
from worker import serve

RATE, BETA1, BETA2, EPSILON, DECAY = 3e-4, 0.9, 0.999, 1e-8, 0.01  # of AdamW
FIRST = 4  # steps whose losses are checked


def shapes(size):
    """The shapes of the parameters by name; the order fixes the initial values. Matrices are (in, out)."""
    d, kv = size.d, getattr(size, "kv_heads", 0) or size.heads
    hidden, gated = getattr(size, "hidden", 0) or 4 * d, getattr(size, "gated", False)
    shapes = {"tok": (size.vocab, d)}
    if getattr(size, "positions", "") != "rotary":
        shapes["pos"] = (size.seq, d)

    def norm(name):
        shapes[name + ".g"] = (d,)
        if getattr(size, "norm", "") != "rmsnorm":
            shapes[name + ".b"] = (d,)

    def linear(name, inputs, outputs):
        shapes[name + ".w"] = (inputs, outputs)
        if not getattr(size, "no_bias", False):
            shapes[name + ".b"] = (outputs,)

    for i in range(size.layers):
        block = f"h{i}."
        norm(block + "ln1")
        linear(block + "qkv", d, (size.heads + 2 * kv) * (d // size.heads))
        linear(block + "o", d, d)
        norm(block + "ln2")
        if gated:
            linear(block + "gate", d, hidden)
        linear(block + "up", d, hidden)
        linear(block + "down", hidden, d)
    norm("lnf")
    if not size.tied:
        shapes["head.w"] = (d, size.vocab)
    return shapes


def weights(size):
    """The initial weights by name."""
    values = {}
    for index, (name, shape) in enumerate(shapes(size).items()):
        if name.endswith(".g"):
            values[name] = np.ones(shape, np.float32)
        elif name.endswith(".b"):
            values[name] = np.zeros(shape, np.float32)
        else:
            values[name] = uniform(index, math.prod(shape), 0.02).reshape(shape)
    return values


def batch(size, step):
    """Inputs and targets: sequence r of all batches starts at byte 97·r of the text, which repeats."""
    text = np.frombuffer(size.text.encode(), np.uint8)
    rows = step * size.batch + np.arange(size.batch)
    tokens = text[(97 * rows[:, None] + np.arange(size.seq + 1)) % len(text)]
    return tokens[:, :-1], tokens[:, 1:]


class Trainer:
    """A subclass has build(size, weights), place(array) and step(inputs, targets) ->
    loss, which returns when all of the step is done, and memory()."""

    def mean(self, loss):
        """The loss of the full batch, from this process's."""
        return loss

    def prepare(self, case):
        forget_peak()
        size = SimpleNamespace(**case)
        self.build(size, weights(size))
        return self.first([self.place(tokens) for tokens in batch(size, step)] for step in range(FIRST))

    def first(self, batches):
        """Make the first steps, and return the facts."""
        self.losses, took = [], []
        for inputs, targets in batches:
            begin = time.perf_counter()
            loss = self.step(inputs, targets)
            took.append(time.perf_counter() - begin)
            self.losses.append(self.mean(loss))
        self.batch = inputs, targets
        return {"values": self.losses, "first_ms": took[0] * 1e3, "memory": self.memory()}

    def sample(self, calls):
        self.step(*self.batch)  # the first call after a pause is slow
        begin = time.perf_counter()
        for _ in range(calls):
            loss = self.step(*self.batch)
        return (time.perf_counter() - begin) * 1e3 / calls

    def finish(self):
        loss = self.mean(self.step(*self.batch))
        if not loss < self.losses[-1]:
            raise ValueError(f"the loss is {loss} after training on one batch, was {self.losses[-1]} before")


class Jax(Trainer):
    """One process with the batch sharded over its devices, and the state replicated or sharded."""

    def __init__(self, devices, split="none", axis="data"):
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

        self.jax, self.devices, self.split = jax, devices, split
        if devices == 1:
            self.whole = self.rows = SingleDeviceSharding(jax.devices()[0])
        else:
            mesh = Mesh(np.array(jax.devices()[:devices]), (axis,))
            self.whole, self.rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(axis))

    def build(self, size, first):
        zeros = {name: np.zeros_like(value) for name, value in first.items()}
        whole = {name: self.whole for name in first}
        parts = {name: self.whole if len(value) % self.devices else self.rows for name, value in first.items()}
        kept = parts if self.split == "all" else whole
        states = whole if self.split == "none" else parts
        self.begin(jax_step(size), (first, zeros, zeros, np.float32(0)), (kept, states, states, self.whole))

    def begin(self, step, state, places):
        """Place the state. The first step compiles the program, ahead of its call for its plan of memory."""
        self.state = self.jax.block_until_ready(self.jax.device_put(state, places))
        self.jit = self.jax.jit(step, donate_argnums=0, out_shardings=(places, self.whole))
        self.program = None

    def place(self, tokens):
        return self.jax.device_put(tokens.astype(np.int32), self.rows).block_until_ready()

    def step(self, inputs, targets):
        if self.program is None:
            self.program = self.jit.lower(self.state, inputs, targets).compile()
        self.state, loss = self.jax.block_until_ready(self.program(self.state, inputs, targets))
        return float(loss)

    def memory(self):
        plan = self.program.memory_analysis()
        return {
            "arg_bytes": plan.argument_size_in_bytes,
            "out_bytes": plan.output_size_in_bytes - plan.alias_size_in_bytes,
            "temp_bytes": plan.temp_size_in_bytes,
        }


class TensorJax(Jax):
    """Tensor parallelism in one process: devices share heads, columns of the first matrix of a pair and rows of the
    second, and the vocabulary. Everything else is replicated, and so are activations between the pairs."""

    def __init__(self, devices):
        super().__init__(devices, axis="tensor")
        from jax.sharding import NamedSharding, PartitionSpec

        def on(*axes):
            return NamedSharding(self.whole.mesh, PartitionSpec(*axes))

        self.rows = self.whole  # every device has the full batch
        self.heads = on(None, None, "tensor")  # of (batch, tokens, heads, width of a head)
        self.parts = {
            "tok": on("tensor"),
            "qkv.w": on(None, None, "tensor"),
            "qkv.b": on(None, "tensor"),
            "o.w": on("tensor"),
            "up.w": on(None, "tensor"),
            "up.b": on("tensor"),
            "down.w": on("tensor"),
            "head.w": on(None, "tensor"),
        }

    def build(self, size, first):
        for name, value in first.items():
            if ".qkv." in name:  # by heads: a device's are not a run of all columns
                first[name] = value.reshape(*value.shape[:-1], 3, size.heads, -1)
        zeros = {name: np.zeros_like(value) for name, value in first.items()}
        places = {name: self.parts.get(re.sub(r"^h\d+\.", "", name), self.whole) for name in first}
        constrain = self.jax.lax.with_sharding_constraint
        step = jax_step(size, between=lambda x: constrain(x, self.whole), heads=lambda x: constrain(x, self.heads))
        self.begin(step, (first, zeros, zeros, np.float32(0)), (places, places, places, self.whole))


def jax_step(size, between=lambda x: x, heads=lambda x: x):
    """A step. Activations between pairs of matrices go through `between`, queries, keys and values through `heads`."""
    import jax
    import jax.numpy as jnp

    def loss_of(w, inputs, targets):
        def norm(x, name):
            mean = x.mean(-1, keepdims=True)
            variance = jnp.square(x - mean).mean(-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w[name + ".g"] + w[name + ".b"]

        def linear(x, name):
            return jnp.tensordot(x, w[name + ".w"], 1) + w[name + ".b"]

        x = between(w["tok"][inputs] + w["pos"])
        for i in range(size.layers):
            block = f"h{i}."
            qkv = linear(norm(x, block + "ln1"), block + "qkv")
            q, k, v = map(heads, jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, size.heads, -1), 2, 0))
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = between(x + linear(mixed.reshape(x.shape), block + "o"))
            x = between(x + linear(jax.nn.gelu(linear(norm(x, block + "ln2"), block + "up")), block + "down"))
        scores = norm(x, "lnf") @ (w["tok"].T if size.tied else w["head.w"])
        return jax_cross_entropy(scores, targets)

    return jax_step_of(loss_of)


def jax_cross_entropy(scores, targets):
    """The mean over all tokens."""
    import jax
    import jax.numpy as jnp

    hit = jnp.take_along_axis(scores, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(scores, -1) - hit).mean()


def jax_step_of(loss_of):
    """A training step of a loss of parameters, inputs and targets."""
    import jax

    def step(state, inputs, targets):
        loss, g = jax.value_and_grad(loss_of)(state[0], inputs, targets)
        return jax_adamw(state, g), loss

    return step


def jax_adamw(state, g):
    """The state after an update by AdamW: parameters, their two states, the number of updates."""
    import jax
    import jax.numpy as jnp

    w, m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g)
    v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g)

    def update(w, m, v):
        direction = m / (1 - BETA1**t) / (jnp.sqrt(v / (1 - BETA2**t)) + EPSILON)
        return w - RATE * (direction + DECAY * w)

    return jax.tree.map(update, w, m, v), m, v, t


class Torch(Trainer):
    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch

    def build(self, size, first):
        torch = self.torch
        model = torch_model(size)
        values = dict(model.named_parameters())
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
        self.model = self.spread(model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=DECAY, fused=True)

    def spread(self, model):
        """The model as it is trained."""
        return model

    def place(self, tokens):
        return self.torch.from_numpy(tokens.astype(np.int64))

    def step(self, inputs, targets):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def memory(self):
        return {"peak_rss_bytes": peak()}


class DDP(Torch):
    """One of the processes that each have a replica of the model and a shard of the batch."""

    def __init__(self, threads, rank, ranks, store):
        super().__init__(threads)
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
        self.dist, self.rank, self.ranks = dist, rank, ranks

    def spread(self, model):
        return self.torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def place(self, tokens):
        return super().place(np.split(tokens, self.ranks)[self.rank])

    def mean(self, loss):
        sum = self.torch.tensor(loss, dtype=self.torch.float64)
        self.dist.all_reduce(sum)
        return sum.item() / self.ranks


class FSDP(DDP):
    """One of the processes that each have a shard of every parameter (FSDP2) and of the batch."""

    def spread(self, model):
        from torch.distributed.fsdp import fully_shard

        mesh = self.dist.init_device_mesh("cpu", (self.ranks,))
        for part in [*model.blocks, model]:
            fully_shard(part, mesh=mesh)
        return model


def torch_model(size):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            d = size.d
            self.ln1, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.ln2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            heads = self.qkv(self.ln1(x)).unflatten(-1, (3, size.heads, -1))
            q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(mixed.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(size.vocab, size.d), nn.Embedding(size.seq, size.d)
            self.blocks = [Block() for _ in range(size.layers)]
            for i, block in enumerate(self.blocks):
                self.add_module(f"h{i}", block)
            self.lnf, self.head = nn.LayerNorm(size.d), nn.Linear(size.d, size.vocab, bias=False)
            if size.tied:
                self.head.weight = self.tok.weight

        def forward(self, inputs, targets):
            x = self.tok(inputs) + self.pos.weight
            for block in self.blocks:
                x = block(x)
            scores = self.head(self.lnf(x))
            return F.cross_entropy(scores.flatten(0, 1), targets.flatten())

    return Model()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["jax", "torch"])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--tensor", action="store_true", help="devices share the layers")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--store")
    parser.add_argument("--split", choices=["none", "states", "all"], default="none", help="what is sharded")
    a = parser.parse_args()
    if a.library == "jax":
        trainer = TensorJax(a.devices) if a.tensor else Jax(a.devices, a.split)
    elif a.ranks == 1:
        trainer = Torch(a.threads)
    else:
        trainer = (FSDP if a.split == "all" else DDP)(a.threads, a.rank, a.ranks, a.store)
    serve(trainer)


if __name__ == "__main__":
    main()
