"""The machine in words: two that are named alike take the same time for the same step."""

from __future__ import annotations

import os
from contextlib import suppress

import torch

from tapetum.native.library import load


def machine_name(device: str, threads: int | None) -> str:
    """Processor or accelerator, threads, and what computes on it."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    library = load()
    kernels = (
        "no kernels"
        if library is None
        else f"{library.tpt_isa().decode()} {library.tpt_built_for().decode()}"
    )
    count = threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    return f"{_processor()}, {count} threads, {kernels}, torch {torch.__version__}"


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    return os.uname().machine
