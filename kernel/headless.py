"""Runs one notebook and says on standard output, a JSON object a line, how it goes.

Standard input holds one JSON object: notebook, ipynb, html (paths; the last two may be empty) and
timeout (seconds a cell). Lines:
  {"event": "cell", "cell": 3, "cells": 9}       cell 3 of 9 begins, counted from 1
  {"event": "ran", "cell": 3, "seconds": 0.6}    it is a code cell and has run
  {"event": "failed", "cell": 3, "why": "..."}   it failed, and the run stops there
"""
import json
import os
import sys
import time

import nbformat
from bs4 import BeautifulSoup
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter


# A cell may print without end; of what went wrong, the end says the most.
LONGEST_WHY = 4000


def say(**event):
    print(json.dumps(event), flush=True)


class Failed(Exception):
    pass


def stderr_of(cell):
    texts = [o.text for o in cell.get("outputs", []) if o.output_type == "stream" and o.name == "stderr"]
    return "".join(texts)


def compile_errors_of(cell):
    """What the Go compiler said, which GoNB shows as HTML with the code around each error."""
    said = []
    for output in cell.get("outputs", []):
        html = output.get("data", {}).get("text/html", "") if output.output_type == "display_data" else ""
        if "application/vnd.jupyter.stderr" in html:
            soup = BeautifulSoup(html, "html.parser")
            for context in soup.select("style, .gonb-err-context"):
                context.decompose()
            said += [line.strip() for line in soup.get_text().splitlines()]
    return "".join(line + "\n" for line in said if line and not line.startswith("#"))


def run(job):
    notebook = nbformat.read(job["notebook"], as_version=4)
    at, began = 0, 0.0

    def on_cell_start(cell, cell_index):
        nonlocal at
        at = cell_index + 1
        say(event="cell", cell=at, cells=len(notebook.cells))

    def on_cell_execute(cell, cell_index):
        nonlocal began
        began = time.perf_counter()

    def on_cell_executed(cell, cell_index, execute_reply):
        say(event="ran", cell=at, seconds=time.perf_counter() - began)
        if text := stderr_of(cell):
            raise Failed("it wrote to standard error: " + text)

    client = NotebookClient(
        notebook, timeout=job["timeout"], kernel_name="shardbook", record_timing=False,
        resources={"metadata": {"path": os.path.dirname(os.path.abspath(job["notebook"]))}},
        on_cell_start=on_cell_start, on_cell_execute=on_cell_execute, on_cell_executed=on_cell_executed)
    why = None
    try:
        client.execute()
    except Failed as e:
        why = str(e)
    except CellExecutionError as e:
        cell = notebook.cells[at - 1]
        why = compile_errors_of(cell) + stderr_of(cell) + f"{e.ename}: {e.evalue}"
    except CellTimeoutError:
        why = f"it did not end within {job['timeout']} s"
    except DeadKernelError:
        why = "the kernel died"
    if why is not None:
        say(event="failed", cell=at, why=why[-LONGEST_WHY:])
    if job["ipynb"]:
        nbformat.write(notebook, job["ipynb"])
    if job["html"]:
        html, _ = HTMLExporter(template_name="shardbook", embed_images=True).from_notebook_node(
            notebook, {"metadata": {"name": os.path.splitext(os.path.basename(job["notebook"]))[0]}})
        with open(job["html"], "w", encoding="utf-8") as f:
            f.write(html)


run(json.load(sys.stdin))
