"""A worker that times a cell in a Jupyter kernel: from the request until the kernel has sent all output and is idle.

The argument is a JSON object, the cellJob of cell.go.
"""
import importlib.metadata
import json
import platform
import signal
import sys
import time

from jupyter_client.manager import start_new_kernel

from worker import serve

PATIENCE = 150  # seconds for a cell


class Cell:
    def __init__(self, job, client):
        self.job, self.client = job, client

    def prepare(self, case):
        if self.job.get("setup"):
            self.run(self.job["setup"])
        self.edited()  # the first one also compiles what the cell imports

    def sample(self, calls):
        return sum(self.edited() for _ in range(calls)) * 1e3 / calls

    def finish(self):
        pass

    def edited(self):
        """Edit the cell and run it. Returns its seconds."""
        text = str(time.time_ns())
        took, *shown = self.run(self.job["cell"].replace("EDIT", text))
        want = [self.job["prints"].replace("EDIT", text), self.job["displays"]]
        if shown != want:
            raise ValueError(f"wrong output, and number of charts: {shown}, want {want}")
        return took

    def run(self, text):
        """Run a cell. Returns its seconds, what it has printed, and how many charts it has shown."""
        printed, displays, errors = "", 0, []

        def see(message):
            nonlocal printed, displays
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "display_data":
                displays += 1
            elif message["msg_type"] == "error":
                errors.extend(content["traceback"])

        begin = time.perf_counter()
        reply = self.client.execute_interactive(text, allow_stdin=False, timeout=PATIENCE, output_hook=see)
        took = time.perf_counter() - begin
        if reply["content"]["status"] != "ok":
            raise ValueError("\n".join([text, printed, *errors]))
        return took, printed, displays


def pythons():
    named = ("ipykernel", "jax", "jaxlib", "numpy")
    return {"Python": platform.python_version(), **{name: importlib.metadata.version(name) for name in named}}


def main():
    job = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the kernel has a process group of its own
    manager, client = start_new_kernel(kernel_name=job["kernel"])
    try:
        serve(Cell(job, client), job.get("versions") or pythons())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        client.stop_channels()
        manager.shutdown_kernel()


main()
