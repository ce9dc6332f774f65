"""The trainer: processes on the cores of one machine that share the weights in memory.

    python -m training.train --minutes 60 --out run

`train` runs it from Python. The folder gets `last.pt`, the checkpoint, and `log.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import spawn

from training.network import Network
from training.train.settings import Settings
from training.train.shared import SharedWeights
from training.train.worker import Team, work

__all__ = ["Settings", "load_weights", "train"]


def train(settings: Settings) -> Path:
    """Train until the time or the steps are over; returns the path of the checkpoint."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    network, first_step = Network(settings.network), 0
    if settings.init:
        first_step = load_weights(network, settings.init)
    barrier = get_context("spawn").Barrier(settings.processes)
    team = Team(
        weights=SharedWeights(network, settings.processes),
        barrier=barrier,
        clock=torch.zeros(1, dtype=torch.float64).share_memory_(),
        first_step=first_step,
    )
    spawn(work, args=(settings, team), nprocs=settings.processes)
    return settings.folder / "last.pt"


def load_weights(network: Network, path: Path) -> int:
    """Load a checkpoint and return its step; of exported weights, which have no heads, the heads start anew."""
    if path.suffix == ".safetensors":
        _, unknown = network.load_state_dict(load_file(path), strict=False)
        if unknown:
            raise ValueError(f"{path} holds {', '.join(unknown)}, which is no part of this network")
        return 0
    checkpoint = torch.load(path, weights_only=True)
    network.load_state_dict(checkpoint["masters"])
    return int(checkpoint["step"])
