"""A step of torch.distributed.pipelining, by ranks that sleep or that train layers, and of PyTorch without it.

The layers, their weights and their batch are those of pipeline_case.go.
"""
import argparse
import math
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from common import uniform
from train import FIRST
from worker import Unsupported, serve

RATE = 0.1  # of plain gradient descent
LATE = 200e-6  # the last seconds of a sleep are a busy wait; with more, processes disturb each other
SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


def nap(ms):
    end = time.perf_counter() + ms / 1e3
    time.sleep(max(0, ms / 1e3 - LATE))
    while time.perf_counter() < end:
        pass


class Slept(torch.autograd.Function):
    """Sleeps, and adds 1 for each layer, by which a step shows that it had all of them."""

    @staticmethod
    def forward(ctx, x, unused, layers, ms):
        ctx.ms = 2 * layers * ms
        nap(layers * ms)
        return x + layers

    @staticmethod
    def backward(ctx, g):
        nap(ctx.ms)
        return g.clone(), torch.zeros(1), None, None


class Sleeper(nn.Module):
    """A stage that sleeps. Its parameter is there for the first stage to have a backward pass."""

    def __init__(self, layers, ms):
        super().__init__()
        self.layers, self.ms = layers, ms
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return Slept.apply(x, self.unused, self.layers, self.ms)


def stack(size, layers):
    """The layers of these numbers."""
    modules = []
    for number in layers:
        linear = nn.Linear(size.width, size.width)
        w = uniform(number, size.width**2).reshape(size.width, size.width) * math.sqrt(2 / size.width)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(w).T)
            linear.bias.zero_()
        modules += [linear, nn.GELU(approximate="tanh")]
    return nn.Sequential(*modules)


def batch(size):
    arrays = (uniform(size.layers + k, size.rows * size.width) for k in range(2))
    return [torch.from_numpy(array.reshape(size.rows, size.width)) for array in arrays]


class Subject:
    """A subclass has build(size), step() -> loss, which returns when all of the step is done, and barrier()."""

    def prepare(self, case):
        self.build(SimpleNamespace(**case))
        self.losses = [self.step() for _ in range(FIRST)]
        return {"values": self.losses}

    def sample(self, calls):
        self.step()  # the first call after a pause is slow
        took = 0
        for _ in range(calls):
            self.barrier()
            begin = time.perf_counter()
            self.train()
            took += time.perf_counter() - begin
        return took * 1e3 / calls

    def finish(self):
        loss = self.step()
        if not loss < self.losses[-1]:
            raise ValueError(f"the loss is {loss} after training on one batch, was {self.losses[-1]} before")


class Whole(Subject):
    """All layers and the full batch at once, in one process."""

    def barrier(self):
        pass

    def build(self, size):
        self.model = stack(size, range(size.layers))
        self.batch = batch(size)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, fused=True)

    def train(self):
        inputs, targets = self.batch
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    step = train


class Pipeline(Subject):
    """One of the ranks of a pipeline."""

    def __init__(self, rank, ranks, store):
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
        self.rank, self.ranks, self.barrier = rank, ranks, dist.barrier

    def stages(self, size, make):
        """Make the rank's stages, each of the numbers of its layers, and its schedule."""
        if size.kind not in SCHEDULES:
            raise Unsupported(f"the schedule {size.kind} is not one that both have")
        each = size.layers // size.stages
        own = [
            pipelining.PipelineStage(make(range(stage * each, (stage + 1) * each)), stage, size.stages,
                                     torch.device("cpu"))
            for stage in range(self.rank, size.stages, self.ranks)
        ]
        self.modules = [stage.submod for stage in own]
        kind = SCHEDULES[size.kind]
        stages = own if kind is pipelining.ScheduleInterleaved1F1B else own[0]
        self.schedule = kind(stages, size.microbatches, loss_fn=self.loss)

    loss = staticmethod(nn.functional.mse_loss)

    def build(self, size):
        self.batch = batch(size)
        self.stages(size, lambda layers: stack(size, layers))
        self.optimizer = torch.optim.SGD([p for m in self.modules for p in m.parameters()], lr=RATE, fused=True)

    def train(self):
        """The rank's part of a step. Returns the loss where it is."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.play()
        self.optimizer.step()
        return loss

    def play(self):
        inputs, targets = self.batch
        args = (inputs,) if self.rank == 0 else ()
        if self.rank < self.ranks - 1:
            self.schedule.step(*args, return_outputs=False)
            return None
        losses = []
        self.schedule.step(*args, target=targets, losses=losses, return_outputs=False)
        return sum(loss.item() for loss in losses) / len(losses)

    def step(self):
        loss = self.train()
        shared = torch.tensor([loss or 0], dtype=torch.float64)
        dist.broadcast(shared, self.ranks - 1)
        return shared.item()


class Sleepers(Pipeline):
    """A rank that sleeps. The loss is what the stages added: the number of layers."""

    def prepare(self, case):
        self.build(SimpleNamespace(**case))
        self.finish()

    def build(self, size):
        self.layers = size.layers
        self.batch = [torch.zeros(size.microbatches, 1)] * 2
        self.stages(size, lambda layers: Sleeper(len(layers), size.forward_ms))

    @staticmethod
    def loss(y, targets):
        return y.mean()

    def train(self):
        return self.play()

    def finish(self):
        if (loss := self.step()) != self.layers:
            raise ValueError(f"the micro-batches went through {loss} layers of {self.layers}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["sleep", "train"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--store")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.ranks == 1:
        subject = Whole()
    else:
        subject = (Sleepers if a.work == "sleep" else Pipeline)(a.rank, a.ranks, a.store)
    serve(subject)


if __name__ == "__main__":
    main()
