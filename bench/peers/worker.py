"""The worker's side of the protocol that protocol.go describes."""
import importlib.metadata
import json
import os
import platform
import socket
import sys
import traceback


class Unsupported(Exception):
    """The case cannot be done here; the message says why."""


def versions():
    """The versions of this Python and of what the subject has imported."""
    named = [name for name in ("jax", "jaxlib", "mpi4py", "numpy", "torch") if name in sys.modules]
    return {"Python": platform.python_version(), **{name: importlib.metadata.version(name) for name in named}}


def serve(subject, uses=None):
    """Answer requests until the connection ends.

    subject has prepare(case) -> facts or None, sample(calls) -> milliseconds of a
    call, finish(). uses are other versions than those of this Python.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["SHARDBOOK_BENCH_SOCKET"])
    lines = connection.makefile("rw")

    def say(**answer):
        print(json.dumps(answer), file=lines, flush=True)

    say(versions=uses or versions())
    for line in lines:
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                say(**(subject.prepare(request["case"]) or {}))
            elif request["do"] == "sample":
                say(ms=subject.sample(request["calls"]))
            else:
                subject.finish()
                say()
        except Unsupported as e:
            say(unsupported=str(e))
        except Exception as e:
            traceback.print_exc()
            say(error=f"{type(e).__name__}: {e}")
