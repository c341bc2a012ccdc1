"""A deep stack of equal residual blocks, with all of its state split over the devices, in JAX.

The model, its weights and its batch are those of zero_stack.go.
"""
import argparse
import math
from types import SimpleNamespace

import numpy as np

import train
from common import uniform
from worker import serve


class Stack(train.Jax):
    """The blocks one after another, or scanned, with only its input saved for the backward pass of a block."""

    def __init__(self, devices, scan):
        super().__init__(devices, split="all")
        self.scan = scan

    def prepare(self, case):
        size = SimpleNamespace(**case)
        weights = [uniform(number, size.width**2).reshape(size.width, size.width) / math.sqrt(size.width)
                   for number in range(2 * size.depth)]
        first = list(zip(weights[::2], weights[1::2]))
        batch = [uniform(2 * size.depth + k, size.rows * size.width).reshape(size.rows, size.width) for k in range(2)]
        self.build(first)
        return self.first([self.jax.device_put(batch, self.rows)] * train.FIRST)

    def build(self, first):
        jax, jnp = self.jax, self.jax.numpy

        def block(x, w):
            up, down = w
            return x + jnp.tanh(x @ up) @ down

        if self.scan:
            first = tuple(np.stack(w) for w in zip(*first))
            part = jax.sharding.NamedSharding(self.rows.mesh, jax.sharding.PartitionSpec(None, *self.rows.spec))
        else:
            part = self.rows

        def loss_of(w, x, targets):
            if self.scan:
                x, _ = jax.lax.scan(lambda x, w: (jax.checkpoint(block)(x, w), None), x, w)
            else:
                for each in w:
                    x = block(x, each)
            return jnp.square(x - targets).mean()

        def step(state, inputs, targets):
            loss, g = jax.value_and_grad(loss_of)(state[0], inputs, targets)
            return train.jax_adamw(state, g), loss

        parts = jax.tree.map(lambda _: part, first)
        zeros = jax.tree.map(np.zeros_like, first)
        self.begin(step, (first, zeros, zeros, np.float32(0)), (parts, parts, parts, self.whole))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int)
    parser.add_argument("--scan", action="store_true")
    a = parser.parse_args()
    serve(Stack(a.devices, a.scan))


if __name__ == "__main__":
    main()
