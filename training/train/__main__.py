"""Command line of the trainer: each option is a field of Settings."""

from __future__ import annotations

import argparse
from pathlib import Path

from training.train import Settings, train


def main() -> None:
    train(Settings(**vars(_parser().parse_args())))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.train",
        description="Train tapetum-mini on this machine's cores.",
        argument_default=argparse.SUPPRESS,
    )
    option = parser.add_argument
    option("--out", dest="folder", type=Path, required=True, help="folder for checkpoint and log")
    option("--minutes", type=float, help="length of the run (60)")
    option("--max-steps", type=int, help="end sooner, after so many steps")
    option("--seed", type=int, help="of weights and samples (1)")
    option("--processes", type=int, help="one per core is best (2)")
    option("--threads", type=int, help="of each process (1)")
    option("--visual-tokens", type=int, help="of each process and step (560)")
    option("--text-tokens", type=int, help="of each sample (130)")
    option("--vision-seconds", type=float, help="of the vision tower alone (20 %% of the time)")
    option("--lr-muon", type=float, help="learning rate of matrices (0.02)")
    option("--lr-adam", type=float, help="learning rate of the rest (0.003)")
    option("--averaging", type=float, help="of the weights over steps (0.995)")
    option("--guidance", type=float, help="weight of the attention guidance (1)")
    option("--fonts", type=Path, help="folder that holds the further faces of generator/fonts.py")
    option("--tokenizer", type=Path, help="tokenizer.json (the bundled one)")
    option("--init", type=Path, help="checkpoint, or exported weights, to go on from")
    option("--start", type=float, help="part of the schedule that the checkpoint has behind it, 0 to 1 (0)")
    option("--log-steps", type=int, help="steps between lines of the log (25)")
    option("--save-seconds", type=float, help="seconds between checkpoints (240)")
    return parser


if __name__ == "__main__":
    main()
