"""LocalExecutor: carries out plans on one device, in order, through the model runner and the sampler."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tapetum.core.config import EngineConfig
from tapetum.core.errors import ConfigError, TapetumError
from tapetum.core.files import require_json
from tapetum.core.folders import user_cache
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, Link, Payload, Row, StepResult
from tapetum.models.base import ModelSpec, VisionLanguageModel
from tapetum.models.table import load_model
from tapetum.ops.table import choose_table
from tapetum.processing import load_processor
from tapetum.processing.extent import extent
from tapetum.runtime.encoder import Encoder
from tapetum.runtime.inputs import TokenBook
from tapetum.runtime.links import Linker
from tapetum.runtime.memory import (
    bound_kernel_caches,
    check_holds_picture,
    largest_step_bytes,
    plan_blocks,
    plan_host_slots,
    room_of,
    token_bytes,
)
from tapetum.runtime.payloads import payload_of, tensor_of
from tapetum.runtime.runner import ModelRunner, Scored
from tapetum.runtime.sampler import Sampler
from tapetum.runtime.store import FeatureStore, KVStore
from tapetum.runtime.verify import Outcome, verify
from tapetum.runtime.windows import WindowCache

logger = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LocalExecutor:
    def __init__(self, model: VisionLanguageModel, facts: ModelFacts, seed: int) -> None:
        self.facts = facts
        self._device = model.spec.device
        self._kv = KVStore(model.spec, facts.num_blocks, facts.block_size, facts.num_host_slots)
        self._features = FeatureStore()
        self._exported: dict[bytes, Payload] = {}  # and not handed over yet
        self._book = TokenBook()
        self._sampler = Sampler(seed)
        self._windows = WindowCache(facts.window_cache_bytes) if facts.window_cache_bytes else None
        self._encoder = Encoder(model, self._features, self._windows)
        self._linker = Linker(model.spec, model.ops, self._kv)
        self._runner = ModelRunner(model, self._kv, self._features, self._book)

    @torch.inference_mode()
    def execute(self, plan: BatchPlan) -> StepResult:
        began = time.perf_counter()
        self._export(plan.exports)
        exported_blocks = self._export_blocks(plan)
        moved_bytes = self._move(plan)
        moved = time.perf_counter()
        self._take_over(plan)
        started = time.perf_counter()
        self._encoder.encode(plan.encodes)
        self._wait()
        encoded = time.perf_counter()
        rows = plan.rows
        if failed := self._encoder.failed:
            rows = tuple(row for row in rows if not self._lacks_features(row, failed))
        scored = self._runner.forward(rows) if rows else None
        errors = self._link(plan.links, rows)
        # last, as it can be done but once: what fails before is run again in pieces
        outcomes = self._choose(scored, rows, plan.masks)
        self._wait()
        forwarded = time.perf_counter()
        exported, self._exported = self._exported, {}
        return StepResult(
            step=plan.step,
            tokens={name: taken for name, taken in outcomes.items() if isinstance(taken, tuple)},
            failed={name: error for name, error in outcomes.items() if isinstance(error, TapetumError)},
            encoded=self._encoder.encoded,
            spared=self._encoder.spared,
            failed_features=self._encoder.failed,
            links=errors,
            drift=self._encoder.drift,
            exported=exported,
            exported_blocks=exported_blocks,
            encode_s=encoded - started,
            forward_s=forwarded - encoded,
            move_s=moved - began,
            moved_bytes=moved_bytes,
        )

    @property
    def num_requests(self) -> int:
        return len(self._book)

    @property
    def feature_keys(self) -> frozenset[bytes]:
        return self._features.keys

    @property
    def encode_keys(self) -> frozenset[bytes]:
        """Media keys of the encodes under way."""
        return self._encoder.keys

    @property
    def window_bytes(self) -> int:
        """Kept of windows, for pictures that have them again."""
        return 0 if self._windows is None else self._windows.num_bytes

    def features_of(self, key: bytes) -> Tensor:
        """Features on the device, [visual tokens, hidden]."""
        return self._features.get(key)

    def _export(self, keys: tuple[bytes, ...]) -> None:
        """What a step has copied that broke off later is handed over by the one that runs in its place."""
        for key in keys:
            if key in self._features.keys:
                self._exported[key] = payload_of(self._features.get(key))

    def _export_blocks(self, plan: BatchPlan) -> dict[bytes, Payload]:
        exported: dict[bytes, Payload] = {}
        for export in plan.block_exports:
            exported.update(zip(export.names, self._kv.export(export.block_ids), strict=True))
        return exported

    def _move(self, plan: BatchPlan) -> int:
        """Let blocks arrive, save and load them -> bytes that were copied, with those of exports before."""
        for arrival in plan.block_arrivals:
            self._kv.arrive(arrival.block_ids, arrival.payloads)
        for move in plan.saves:
            self._kv.save(move.block_ids, move.slots)
        for move in plan.loads:
            self._kv.load(move.slots, move.block_ids)
        moves = (plan.block_exports, plan.block_arrivals, plan.saves, plan.loads)
        num_blocks = sum(len(move.block_ids) for kind in moves for move in kind)
        if num_blocks:
            self._wait()
        return self._kv.num_bytes(num_blocks)

    def _take_over(self, plan: BatchPlan) -> None:
        for request_id in plan.released:
            self._book.remove(request_id)
            self._sampler.remove(request_id)
        for key in plan.dropped_features:
            self._encoder.drop(key)
        if plan.drops_windows:
            self._encoder.drop_windows()
        for request in plan.admitted:
            self._book.add(request)
            self._sampler.add(request)
        for arrival in plan.arrivals:
            self._features.put(arrival.key, tensor_of(arrival.payload, self._device))

    def _link(self, links: tuple[Link, ...], rows: tuple[Row, ...]) -> dict[str, float]:
        """Of those whose rows have been computed: how far off they are."""
        done = {row.request_id for row in rows} if links else ()
        return {link.request_id: self._linker.link(link) for link in links if link.request_id in done}

    def _choose(
        self, scored: Scored | None, rows: tuple[Row, ...], masks: Mapping[str, bytes]
    ) -> dict[str, Outcome]:
        if scored is None:
            return {}
        guesses = {row.request_id: row.guess for row in rows if row.guess}
        outcomes = verify(self._sampler, scored.logits, scored.best, scored.request_ids, guesses, masks)
        for request_id, outcome in outcomes.items():
            if isinstance(outcome, tuple):
                self._book.append(request_id, [token.token_id for token in outcome])
        return outcomes

    def _lacks_features(self, row: Row, failed: Mapping[bytes, TapetumError]) -> bool:
        spans = self._book[row.request_id].spans
        return any(span.key in failed and span.start < row.end and row.start < span.end for span in spans)

    def _wait(self) -> None:
        """Wait for the device, so that the times of a step are true."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def load_executor(directory: Path, config: EngineConfig) -> LocalExecutor:
    """Load a checkpoint onto the configured device and set up its stores."""
    bound_kernel_caches()
    device = resolve_device(config.device.device)
    dtype = resolve_dtype(config.model.dtype, directory, device)
    ops = choose_table(device, dtype)
    ops.use_threads(config.device.threads)
    model = load_model(directory, dtype, device, ops, resolve_pack_folder(config.model.pack_cache))
    max_model_len = _max_model_len(model.spec, config)
    sizes = extent(load_processor(directory), config.media.max_pixels, config.media.max_frames)
    check_holds_picture(model.spec, config, sizes, max_model_len)
    is_native = ops.decoder is not None
    step_bytes = largest_step_bytes(model.spec, config, sizes, max_model_len, is_native=is_native)
    window_bytes = config.cache.window_cache_bytes if model.spec.has_windows and ops.has_exact_rows else 0
    num_host_slots = plan_host_slots(model.spec, max_model_len, config)
    room = room_of(model.spec, config, step_bytes, window_bytes, num_host_slots)
    num_blocks = plan_blocks(model.spec, max_model_len, config, room)
    facts = replace(
        _facts(model, max_model_len, num_blocks, config, ops.name),
        num_host_slots=num_host_slots,
        has_exact_parts=ops.has_exact_rows,
        window_cache_bytes=window_bytes,
    )
    logger.info(
        "%s on %s in %s with %s ops: %d KV blocks of %d tokens (%s)",
        facts.model_type,
        device,
        facts.dtype,
        ops.name,
        facts.num_blocks,
        facts.block_size,
        room,
    )
    return LocalExecutor(model, facts, config.device.seed)


def _max_model_len(spec: ModelSpec, config: EngineConfig) -> int:
    wanted = config.model.max_model_len
    if wanted is not None and wanted > spec.max_model_len:
        raise ConfigError(
            f"--max-model-len is {wanted}, the checkpoint was made for at most {spec.max_model_len} tokens"
        )
    return spec.max_model_len if wanted is None else wanted


def _facts(
    model: VisionLanguageModel, max_model_len: int, num_blocks: int, config: EngineConfig, kernels: str
) -> ModelFacts:
    spec = model.spec
    dtype = str(spec.dtype).removeprefix("torch.")
    # Other kernels may round otherwise: what they make is kept apart wherever it is shared.
    arithmetic = f" {spec.dtype} {spec.device.type} {kernels}".encode()
    return ModelFacts(
        model_type=spec.model_type,
        dtype=dtype,
        device=str(spec.device),
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        kv_bytes_per_token=token_bytes(spec),
        feature_bytes_per_token=spec.feature_size * spec.dtype.itemsize,
        weights_fingerprint=model.weights_fingerprint + arithmetic,
        encoder_fingerprint=model.encoder_fingerprint + arithmetic,
    )


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device is {name!r}, must be auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device is {name!r}, must be auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device is {name!r}, but torch finds no CUDA device; use --device cpu")
    return device


def resolve_pack_folder(name: str) -> Path | None:
    """The folder named, or this user's by the XDG rules; None for no folder, or for a user without a home."""
    if name != "auto":
        return Path(name).expanduser() if name else None
    return user_cache("packed")


def resolve_dtype(name: str, directory: Path, device: torch.device) -> torch.dtype:
    """The named type; `auto` is the checkpoint's own where the device computes in it, else float32."""
    if name in DTYPES:
        return DTYPES[name]
    if name != "auto":
        raise ConfigError(f"--dtype is {name!r}, must be auto or one of {', '.join(DTYPES)}")
    values = require_json(directory / "config.json")
    text = values.get("text_config")
    nested = text if isinstance(text, dict) else {}
    own = values.get("dtype") or values.get("torch_dtype") or nested.get("dtype") or "float32"
    dtype = DTYPES.get(str(own), torch.float32)
    if device.type == "cpu" and (dtype == torch.float16 or not torch.cpu._is_avx512_bf16_supported()):
        return torch.float32  # a CPU without bf16 instructions is faster and exact in float32
    return dtype
