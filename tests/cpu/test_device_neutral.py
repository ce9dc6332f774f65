"""Nothing in the models assumes a CPU: both stages run on another device, and no operation mixes devices.

The meta device stands in for a GPU: it has shapes and types but no values.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from tapetum.core.plan import Row
from tapetum.models.base import ModelSpec
from tapetum.models.composed import PictureEncoder, make_spec
from tapetum.models.decoder import Decoder
from tapetum.models.table import read_blueprint
from tapetum.models.weights import Source, Weights
from tapetum.ops.parts import DeepFeatures
from tapetum.ops.table import choose_table
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions
from tapetum.runtime.inputs import TokenBook, build_inputs
from tests.cpu.test_executor import make_request
from tests.families.table import FAMILIES


class OneDevice(TorchDispatchMode):
    """Refuses operations, other than moves, whose tensors are on different devices; scalars may come from the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [
            item for item in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)
        ]
        devices = {item.device for item in tensors if item.dim()}
        is_move = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        assert len(devices) <= 1 or is_move, f"{func} mixes {devices}"
        return func(*args, **(kwargs or {}))


def test_the_check_itself_refuses_a_mix() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="mixes"):
        torch.empty(3, device="meta")[torch.tensor([0, 1])]


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param].write(tmp_path_factory.mktemp(request.param), 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_encode_and_forward_never_mix_devices(directory: Path, dtype: torch.dtype) -> None:
    device = torch.device("meta")
    blueprint, processor = read_blueprint(directory), load_processor(directory)
    spec = make_spec(blueprint, dtype, device)
    with OneDevice():
        ops = choose_table(device, dtype)
        sources = {
            slot.name: Source(slot.shape, partial(torch.empty, slot.shape, dtype=dtype, device=device))
            for slot in blueprint.table.slots
        }
        weights = Weights(sources, dtype, ops)
        decoder = Decoder(blueprint.decoder, weights, ops)
        if blueprint.make_encoder is not None:
            encoder = blueprint.make_encoder(weights, ops)
            check_encoder(encoder, processor, spec)
        if blueprint.decoder.experts is not None:
            return  # which experts compute is read from values, and there are none
        book = TokenBook()
        caches = [
            torch.empty(2 * spec.num_kv_heads, 8, 4, spec.head_dim, dtype=dtype, device=device)
            for _ in range(spec.num_layers)
        ]
        for name in "ab":
            book.add(make_request(name))
        rows = [
            Row(request_id="a", start=0, length=3, block_ids=(1,), has_sample=True),
            Row(request_id="b", start=2, length=1, block_ids=(2,), has_sample=True),
        ]
        inputs = build_inputs(rows, book, 4, dtype, device)
        x = decoder.embed(inputs.token_ids)
        logits, _ = decoder.head(decoder.forward(x, inputs.position_ids, caches, inputs.layout, deep(spec)))
        assert logits.device == device and logits.shape == (2, spec.vocab_size)


def check_encoder(encoder: PictureEncoder, processor: Processor, spec: ModelSpec) -> None:
    """On pictures of two shapes."""
    sizes = (120, 40), (64, 64)
    geometries = [processor.geometry("image", *size, options=ProcessorOptions()) for size in sizes]
    grey = [Image.new("RGB", size, (128, 128, 128)) for size in sizes]
    shapes = [
        processor.patches([picture], geometry).shape
        for picture, geometry in zip(grey, geometries, strict=True)
    ]
    patches = [torch.empty(shape, dtype=torch.uint8, device=spec.device) for shape in shapes]
    features = encoder.begin(patches, geometries).finish()
    for item, geometry in zip(features, geometries, strict=True):
        assert item.device == spec.device and item.dtype == spec.dtype
        assert item.shape == (geometry.num_tokens, spec.feature_size)


def deep(spec: ModelSpec) -> tuple[DeepFeatures, ...]:
    """Of the first two tokens, in a model that has such features."""
    width = spec.feature_size - spec.hidden_size
    values = torch.empty(2, width, dtype=spec.dtype, device=spec.device)
    return (DeepFeatures(0, 2, values),) if width else ()
