"""What a run of the trainer is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tapetum.assets import MODEL_DIR
from training.network import NetworkConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    folder: Path  # checkpoint and log go here
    minutes: float = 60.0
    max_steps: int = 0  # 0 = until the time is up
    seed: int = 1
    processes: int = 2
    threads: int = 1  # of each process
    visual_tokens: int = 560  # of each process and step, about
    text_tokens: int = 130  # of each sample, about
    vision_seconds: float | None = None  # of the vision tower alone; None = 20 % of the time
    lr_muon: float = 0.02
    lr_adam: float = 0.003
    averaging: float = 0.995  # of the weights over steps
    guidance: float = 1.0  # weight of the attention guidance at the start
    fonts: Path | None = None  # folder that holds the further faces of generator.fonts
    tokenizer: Path = MODEL_DIR / "tokenizer.json"
    init: Path | None = None  # checkpoint or exported weights to go on from
    start: float = 0.0  # the part of the schedule that it has behind it, 0 .. 1
    log_steps: int = 25
    save_seconds: float = 240.0
    network: NetworkConfig = field(default_factory=NetworkConfig)

    @property
    def seconds_of_vision(self) -> float:
        return 0.2 * self.minutes * 60 if self.vision_seconds is None else self.vision_seconds
