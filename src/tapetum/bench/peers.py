"""The servers that can be compared: how each is started on a checkpoint, and what it wants in a request.

Owns command lines and environments, with equal threads, context and precision (bfloat16) for all. A peer that the
user names as a path may be a script that sets what else it needs, such as a preloaded allocator. Does not start
anything: see `launch`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from tapetum.core.errors import ConfigError

Kind = Literal["tapetum", "vllm", "llama", "transformers"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_PROGRAMS = {"vllm": "vllm", "llama": "llama-server", "transformers": "transformers"}
_MODEL_NAME = "bench"
_CONTEXT = 8192  # tokens of a request
_LLAMA_SLOTS, _LLAMA_CONTEXT = 8, 32768  # of all slots together
_MAX_PIXELS = 1_806_336  # 1344x1344, the largest picture of the workloads
_LARGE_BYTES = 2**30  # a checkpoint from here on gets the larger KV cache
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server that can be started. `label` names it in tables; the port is added when it starts."""

    kind: Kind
    label: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str = _MODEL_NAME

    def fields(self, max_tokens: int) -> dict[str, object]:
        """What a request needs beside OpenAI's fields for an answer of exactly `max_tokens`."""
        if self.kind != "transformers":
            return {"ignore_eos": True}
        lengths = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens, "do_sample": False}
        return {"generation_config": json.dumps(lengths)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all peers of a run have in common."""

    checkpoint: Path
    threads: int
    gguf: tuple[tuple[str, Path], ...] = ()  # precision, file
    mmproj: Path | None = None
    more_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by kind

    @property
    def kv_gib(self) -> int:
        size = sum(file.stat().st_size for file in self.checkpoint.glob("*.safetensors"))
        return 4 if size >= _LARGE_BYTES else 2


def peers_of(named: Sequence[str], ground: Ground) -> tuple[Peer, ...]:
    """Tapetum, and the peers named as KIND or KIND=PATH."""
    peers = [_tapetum(ground)]
    for name in named:
        kind, _, path = name.partition("=")
        if kind == "vllm":
            peers.append(_vllm(_program(kind, path), ground))
        elif kind == "llama":
            peers += _llamas(_program(kind, path), ground)
        elif kind == "transformers":
            peers.append(_transformers(_program(kind, path), ground))
        else:
            known = ", ".join(_PROGRAMS)
            raise ConfigError(f"--peer is {name!r}, known are {known}; write KIND or KIND=PATH")
    return tuple(peers)


def _program(kind: str, path: str) -> str:
    found = shutil.which(path or _PROGRAMS[kind])
    if found is None:
        wanted = path or _PROGRAMS[kind]
        raise ConfigError(f"--peer {kind}: no program {wanted}; install it, or write {kind}=PATH")
    return found


def _tapetum(ground: Ground) -> Peer:
    command = (
        *(sys.executable, "-m", "tapetum", "serve", str(ground.checkpoint)),
        *("--served-model-name", _MODEL_NAME, "--device", "cpu", "--dtype", "bfloat16"),
        *("--threads", str(ground.threads), "--max-model-len", str(_CONTEXT)),
        *("--kv-cache-memory", str(ground.kv_gib), "--log-level", "warning"),
        *("--speculate", "off"),  # random weights repeat one token, which every guess gets right
    )
    return _peer("tapetum", "Tapetum bf16", command, ground)


def _vllm(program: str, ground: Ground) -> Peer:
    command = (
        *(
            program,
            "serve",
            str(ground.checkpoint),
            "--served-model-name",
            _MODEL_NAME,
            "--dtype",
            "bfloat16",
        ),
        *("--max-model-len", str(_CONTEXT), "--max-num-seqs", "16", "--skip-mm-profiling"),
        *("--limit-mm-per-prompt", json.dumps({"image": 16, "video": 0})),
        *("--mm-processor-kwargs", json.dumps({"max_pixels": _MAX_PIXELS})),
        *("--generation-config", "vllm"),
    )
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(ground.kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{ground.threads - 1}" if ground.threads > 1 else "0",
    }
    return _peer("vllm", "vLLM bf16", command, ground, environment)


def _llamas(program: str, ground: Ground) -> list[Peer]:
    if not ground.gguf or ground.mmproj is None:
        raise ConfigError("--peer llama needs the checkpoint as --gguf PRECISION=FILE and --mmproj FILE")
    threads = str(ground.threads)
    peers = []
    for precision, file in ground.gguf:
        command = (
            *(program, "-m", str(file), "--mmproj", str(ground.mmproj), "--alias", _MODEL_NAME, "--jinja"),
            *("-t", threads, "-tb", threads, "-np", str(_LLAMA_SLOTS), "-c", str(_LLAMA_CONTEXT)),
        )
        peers.append(_peer("llama", f"llama.cpp {precision}", command, ground))
    return peers


def _transformers(program: str, ground: Ground) -> Peer:
    command = (program, "serve", "--device", "cpu", "--dtype", "bfloat16", str(ground.checkpoint))
    return _peer("transformers", "transformers bf16", command, ground, model=str(ground.checkpoint))


def _peer(
    kind: Kind,
    label: str,
    command: tuple[str, ...],
    ground: Ground,
    environment: Mapping[str, str] | None = None,
    model: str = _MODEL_NAME,
) -> Peer:
    return Peer(
        kind=kind,
        label=label,
        command=(*command, *ground.more_words.get(kind, ())),
        environment={**_OFFLINE, "OMP_NUM_THREADS": str(ground.threads), **(environment or {})},
        model=model,
    )
