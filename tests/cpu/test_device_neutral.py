"""Nothing in the models assumes a CPU: both stages run on another device, and no operation mixes devices.

The meta device stands in for a GPU: it has shapes and types but no values.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tapetum.core.plan import Row
from tapetum.models.decoder import Decoder
from tapetum.models.qwen_vl.model import read_config
from tapetum.models.qwen_vl.names import name_table
from tapetum.models.qwen_vl.vision import VisionTower
from tapetum.models.weights import Source, Weights
from tapetum.ops.table import choose_table
from tapetum.runtime.inputs import TokenBook, build_inputs
from tests.checkpoints import FAMILIES, write_checkpoint
from tests.cpu.test_executor import make_request
from tests.geometries import bare


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_encode_and_forward_never_mix_devices(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, family)
    device = torch.device("meta")
    _, decoder_config, vision_config = read_config(directory)
    with OneDevice():
        table, ops = name_table(decoder_config, vision_config), choose_table(device, dtype)
        sources = {
            slot.name: Source(slot.shape, partial(torch.empty, slot.shape, dtype=dtype, device=device))
            for slot in table.slots
        }
        weights = Weights(sources, dtype, ops)
        tower, decoder = VisionTower(vision_config, weights, ops), Decoder(decoder_config, weights, ops)
        patches = [torch.empty(16, 588, dtype=torch.uint8, device=device) for _ in range(2)]
        features = tower.begin(patches, bare([(1, 4, 4), (1, 2, 8)])).finish()
        assert all(
            item.device == device and item.dtype == dtype and item.shape == (4, 128) for item in features
        )
        book = TokenBook()
        caches = [
            torch.empty(4, 8, 4, 32, dtype=dtype, device=device) for _ in range(decoder_config.num_layers)
        ]
        for name in "ab":
            book.add(make_request(name))
        rows = [
            Row(request_id="a", start=0, length=3, block_ids=(1,), has_sample=True),
            Row(request_id="b", start=2, length=1, block_ids=(2,), has_sample=True),
        ]
        inputs = build_inputs(rows, book, 4, dtype, device)
        x = decoder.embed(inputs.token_ids)
        x[:2] = features[0][:2]
        logits, _ = decoder.head(decoder.forward(x, inputs.position_ids, caches, inputs.layout))
        assert logits.device == device and logits.shape == (2, decoder_config.vocab_size)
