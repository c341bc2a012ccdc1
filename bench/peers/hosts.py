"""Training steps of the reference model in PyTorch, in one process that has the batch of one of several."""
import argparse

from train import Torch
from worker import serve


class Alone(Torch):
    """The losses are those of the full batches; the shard of the first process is measured."""

    def __init__(self, threads, ranks):
        super().__init__(threads)
        self.ranks = ranks

    def prepare(self, case):
        facts = super().prepare(case)
        self.batch = [tokens.chunk(self.ranks)[0].contiguous() for tokens in self.batch]
        self.losses = [self.step(*self.batch)]  # which the measured steps must lower
        return facts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--store")
    a = parser.parse_args()
    serve(Alone(a.threads, a.ranks))


if __name__ == "__main__":
    main()
