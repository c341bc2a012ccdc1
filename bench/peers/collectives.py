"""The collective operations of torch.distributed (gloo), Open MPI and JAX.

Each rank gives and gets what collectives_case.go says.
"""
import argparse
import time

import numpy as np

from worker import Unsupported, serve

PERIOD = 251


def values(rank, start, count):
    """Elements start, start+1, ... of a rank's data."""
    pattern = (start + np.arange(PERIOD)) % PERIOD + 1
    return np.resize(((rank + 1) * pattern).astype(np.float32), count)


class Case:
    def __init__(self, case):
        self.op, self.ranks = case["op"], case["ranks"]
        self.whole = case["bytes"] // 4
        self.part = self.whole // self.ranks

    def input(self, rank):
        if self.op == "all-gather":
            return values(rank, rank * self.part, self.part)
        return values(rank, 0, self.whole)

    def want(self, rank):
        n, total = self.ranks, self.ranks * (self.ranks + 1) // 2
        if self.op == "all-reduce":
            return values(total - 1, 0, self.whole)
        if self.op == "reduce-scatter":
            return values(total - 1, rank * self.part, self.part)
        if self.op == "all-gather":
            return np.concatenate([values(r, r * self.part, self.part) for r in range(n)])
        if self.op == "all-to-all":
            return np.concatenate([values(r, rank * self.part, self.part) for r in range(n)])
        return values(0, 0, self.whole)

    def check(self, got, rank):
        wrong = np.flatnonzero(got != self.want(rank))
        if got.size != self.want(rank).size or wrong.size:
            raise ValueError(f"wrong result: {self.op} of {4 * self.whole} bytes, elements {wrong[:4]}")


class Rank:
    """One rank in a process of its own. A subclass has barrier() and calls(case),
    which sets self.give and self.got, NumPy views of the buffers, and returns the
    ways to make a call."""

    def __init__(self, rank):
        self.rank = rank

    def prepare(self, case):
        self.case = Case(case)
        self.given = self.case.input(self.rank)
        self.ways = self.calls(self.case)
        self.way = self.ways[0]
        for self.way in self.ways:
            self.verify()
        self.way = self.best()

    def best(self):
        """The fastest way. All ranks agree, as rank 0 chooses."""
        if len(self.ways) == 1:
            return self.ways[0]
        times = []
        for self.way in self.ways:
            self.sample(3)
            times.append(min(self.sample(3) for _ in range(3)))
        return self.ways[self.agree(int(np.argmin(times)))]

    def verify(self):
        self.give[:] = self.given
        if self.got is not self.give:
            self.got[:] = 0
        self.barrier()
        self.way()
        self.case.check(self.got, self.rank)

    def sample(self, calls):
        way = self.way
        self.give[:] = self.given
        way()  # the first call after a pause is slow
        self.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            way()
        return (time.perf_counter() - begin) * 1e3 / calls

    def finish(self):
        self.verify()
        del self.given, self.give, self.got, self.way, self.ways


class Gloo(Rank):
    def __init__(self, threads, rank, ranks, store):
        super().__init__(rank)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(threads)
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
        self.torch, self.dist, self.barrier = torch, dist, dist.barrier

    def calls(self, case):
        dist = self.dist
        whole, part = self.torch.zeros(case.whole), self.torch.zeros(case.part)
        give, got, call = {
            "all-reduce": (whole, whole, lambda: dist.all_reduce(whole)),
            "reduce-scatter": (whole, part, lambda: dist.reduce_scatter_single(part, whole)),
            "all-gather": (part, whole, lambda: dist.all_gather_single(whole, part)),
            "all-to-all": (whole, other := self.torch.zeros_like(whole), lambda: dist.all_to_all_single(other, whole)),
            "broadcast": (whole, whole, lambda: dist.broadcast(whole, 0)),
        }[case.op]
        self.give = give.numpy()
        self.got = self.give if got is give else got.numpy()
        return [call]


class OpenMPI(Rank):
    def __init__(self):
        from mpi4py import MPI

        self.MPI, self.world = MPI, MPI.COMM_WORLD
        super().__init__(self.world.rank)
        self.barrier = self.world.Barrier

    def agree(self, choice):
        return self.world.bcast(choice, 0)

    def calls(self, case):
        world, MPI = self.world, self.MPI
        whole, part = np.zeros(case.whole, np.float32), np.zeros(case.part, np.float32)
        if case.op == "all-reduce":
            self.give = self.got = whole
            return [lambda: world.Allreduce(MPI.IN_PLACE, whole, MPI.SUM)]
        if case.op == "reduce-scatter":  # MPI has two, of different algorithms
            self.give, self.got = whole, part
            return [lambda: world.Reduce_scatter(whole, part, None, MPI.SUM),
                    lambda: world.Reduce_scatter_block(whole, part, MPI.SUM)]
        if case.op == "all-gather":
            self.give, self.got = part, whole
            return [lambda: world.Allgather(part, whole)]
        if case.op == "all-to-all":
            self.give, self.got = whole, np.zeros_like(whole)
            return [lambda: world.Alltoall(whole, self.got)]
        self.give = self.got = whole
        return [lambda: world.Bcast(whole, 0)]


class Jax:
    """All ranks are devices of this process; each device holds one row."""

    def __init__(self, ranks, donate):
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        self.jax, self.donate, self.spec = jax, donate, PartitionSpec("x", None)
        self.mesh = jax.sharding.Mesh(np.array(jax.devices()[:ranks]), ("x",))
        self.sharding = NamedSharding(self.mesh, self.spec)

    def prepare(self, case):
        jax, lax = self.jax, self.jax.lax
        self.case = Case(case)
        if self.donate and self.case.op in ("reduce-scatter", "all-gather"):
            raise Unsupported("the result is not as large as what is donated")
        body = {
            "all-reduce": lambda v: lax.psum(v, "x"),
            "reduce-scatter": lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True),
            "all-gather": lambda v: lax.all_gather(v, "x", axis=1, tiled=True),
            "all-to-all": lambda v: lax.all_to_all(v, "x", split_axis=1, concat_axis=1, tiled=True),
            # XLA has no broadcast on CPU devices.
            "broadcast": lambda v: lax.psum(jax.numpy.where(lax.axis_index("x") == 0, v, 0), "x"),
        }[self.case.op]
        self.call = jax.jit(
            jax.shard_map(body, mesh=self.mesh, in_specs=self.spec, out_specs=self.spec, check_vma=False),
            donate_argnums=0 if self.donate else ())
        self.host = np.stack([self.case.input(r) for r in range(self.case.ranks)])
        self.verify()

    def place(self):
        return self.jax.device_put(self.host, self.sharding).block_until_ready()

    def verify(self):
        self.held = self.place()
        got = np.asarray(self.call(self.held))
        for rank, row in enumerate(got):
            self.case.check(row, rank)
        self.held = self.place()

    def sample(self, calls):
        self.make(1)  # the first call after a pause is slow
        begin = time.perf_counter()
        self.make(calls)
        return (time.perf_counter() - begin) * 1e3 / calls

    def make(self, calls):
        # Each call is waited for: JAX comes to a deadlock if there are several on the way.
        for _ in range(calls):
            result = self.call(self.held).block_until_ready()
            if self.donate:
                self.held = result

    def finish(self):
        self.verify()
        del self.held, self.host, self.call


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["gloo", "mpi", "jax"])
    parser.add_argument("--rank", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--store")
    parser.add_argument("--donate", action="store_true")
    a = parser.parse_args()
    if a.library == "gloo":
        subject = Gloo(a.threads, a.rank, a.ranks, a.store)
    elif a.library == "mpi":
        subject = OpenMPI()
    else:
        subject = Jax(a.ranks, a.donate)
    serve(subject)


if __name__ == "__main__":
    main()
