"""Causal attention in PyTorch and in JAX.

Operands, their order and what stands for a result are those of flash_case.go: arrays
are (tokens, heads, width) there.
"""
import argparse
import ctypes
import gc
import math
import time
from types import SimpleNamespace

import numpy as np

from common import forget_peak, peak, uniform
from worker import Unsupported, serve

SMALL = 128  # tokens of the cases that are done before anything is measured
SLOW = 0.5  # seconds: how long a call takes that needs no other before it
TOLERANCE = 1e-5
CHUNK = 256  # queries


def fingerprint(result):
    result = np.ascontiguousarray(result, np.float64).ravel()
    return float(uniform(3, result.size) @ result / math.sqrt(result.size))


def peak_rise(call):
    """What call returns, and by how many bytes the process's memory rose meanwhile."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # or call might have what was freed, and nothing would rise
    except AttributeError:
        pass
    forget_peak()
    before = peak()
    result = call()
    return result, peak() - before


class Attention:
    """A subclass has holds_scores, heads_first (the order of its operands' axes), place(array),
    build(case, operands) -> a function that returns the results, plan() and read(result)."""

    holds_scores = False
    heads_first = True

    def warm(self):
        for backward in (False, True):
            self.prepare({"tokens": SMALL, "heads": 8, "width": 64, "backward": backward, "fits": True})
            self.finish()

    def prepare(self, case):
        case = SimpleNamespace(**case)
        if self.holds_scores and not case.fits:
            raise Unsupported("too little free memory for the scores of all pairs")
        shape = (case.tokens, case.heads, case.width)
        operands = [uniform(number, math.prod(shape)).reshape(shape) for number in range(3)]
        if self.heads_first:
            operands = [array.transpose(1, 0, 2) for array in operands]
        self.call = self.build(case, [self.place(np.ascontiguousarray(array[None])) for array in operands])
        del operands
        begin = time.perf_counter()
        results, rise = peak_rise(self.call)
        self.slow = time.perf_counter() - begin > SLOW
        self.values = self.fingerprints(results)
        return {"values": self.values, "memory": {"extra_rss_bytes": rise, **self.plan()}}

    def fingerprints(self, results):
        arrays = [self.read(result)[0] for result in results]
        return [fingerprint(array.transpose(1, 0, 2) if self.heads_first else array) for array in arrays]

    def sample(self, calls):
        if not self.slow:
            self.call()  # the first call after a pause is slow
        begin = time.perf_counter()
        for _ in range(calls):
            self.call()
        return (time.perf_counter() - begin) * 1e3 / calls

    def finish(self):
        got = self.fingerprints(self.call())
        if not np.allclose(got, self.values, rtol=0, atol=TOLERANCE):
            raise ValueError(f"the results are {got}, were {self.values} before")
        del self.call


class Torch(Attention):
    def __init__(self, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.warm()

    def place(self, array):
        return self.torch.from_numpy(array)

    def build(self, case, operands):
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def attention():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=True)

        def forward():
            with torch.no_grad():
                return [attention()]

        if not case.backward:
            return forward
        for operand in operands:
            operand.requires_grad_()
        return lambda: torch.autograd.grad(attention().sum(), operands)

    def plan(self):
        return {}

    def read(self, result):
        return result.numpy()


class Jax(Attention):
    def __init__(self, attention):
        import jax

        self.jax, self.attention = jax, attention
        self.holds_scores = attention is not chunked
        self.heads_first = attention is not library
        self.warm()

    def place(self, array):
        return self.jax.device_put(array).block_until_ready()

    def build(self, case, operands):
        jax = self.jax

        def forward(q, k, v):
            return [self.attention(jax, q, k, v)]

        backward = jax.grad(lambda *qkv: self.attention(jax, *qkv).sum(), (0, 1, 2))
        self.program = jax.jit(backward if case.backward else forward).lower(*operands).compile()
        return lambda: jax.block_until_ready(self.program(*operands))

    def plan(self):
        plan = self.program.memory_analysis()
        return {
            "arg_bytes": plan.argument_size_in_bytes,
            "out_bytes": plan.output_size_in_bytes,
            "temp_bytes": plan.temp_size_in_bytes,
        }

    def read(self, result):
        return np.asarray(result)


def naive(jax, q, k, v, first=0):
    """Attention of the queries from the first on."""
    jnp = jax.numpy
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    seen = jnp.arange(k.shape[2]) <= first + jnp.arange(q.shape[2])[:, None]
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)


def library(jax, q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def chunked(jax, q, k, v):
    """Attention without the scores of all pairs, as JAX users write it: some queries at a
    time, whose scores are computed again for the gradient."""
    tokens = q.shape[2]
    size = max(n for n in range(1, CHUNK + 1) if tokens % n == 0)

    @jax.checkpoint
    def chunk(first):
        return naive(jax, jax.lax.dynamic_slice_in_dim(q, first, size, 2), k, v, first)

    chunks = jax.lax.map(chunk, jax.numpy.arange(0, tokens, size))
    return jax.numpy.moveaxis(chunks, 0, 2).reshape(q.shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("implementation", choices=["torch", "jax-naive", "jax-nn", "jax-chunked"])
    parser.add_argument("--threads", type=int)
    a = parser.parse_args()
    if a.implementation == "torch":
        serve(Torch(a.threads))
    else:
        serve(Jax({"jax-naive": naive, "jax-nn": library, "jax-chunked": chunked}[a.implementation]))


if __name__ == "__main__":
    main()
