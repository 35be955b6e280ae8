"""Sharded models by PyTorch: FSDP2, and tensor parallelism by DTensor, for timm's model."""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def shard(
    model: torch.nn.Module, mesh: DeviceMesh, reshard_after_forward: bool, precision: torch.dtype = torch.float32
) -> None:
    """Shards the training state block by block. The model computes and reduces gradients in `precision`."""
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=precision)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=policy)
    # Weights outside of blocks are needed again at once, so they stay gathered, which is PyTorch's default.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=policy)


def divide_heads(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Splits the heads and the MLP of each block over ranks. The model must be equal on all ranks."""
    ranks = mesh.size()
    for block in model.blocks:
        attention = block.attn
        with torch.no_grad():
            for tensor in (attention.qkv.weight, attention.qkv.bias):
                # Each rank gets consecutive rows: queries, keys and values of its heads.
                rows = torch.arange(len(tensor)).reshape(3, ranks, -1).transpose(0, 1).flatten()
                tensor.copy_(tensor[rows])
        attention.num_heads //= ranks
        attention.attn_dim //= ranks
        parallelize_module(block, mesh, {
            "attn.qkv": ColwiseParallel(), "attn.proj": RowwiseParallel(),
            "mlp.fc1": ColwiseParallel(), "mlp.fc2": RowwiseParallel(),
        })


def split_groups(groups: list[dict]) -> list[dict]:
    """Splits parameter groups into sharded and other parameters: fused optimizers do not accept both in one group."""
    def part(group: dict, is_sharded: bool) -> dict:
        chosen = [parameter for parameter in group["params"] if isinstance(parameter, DTensor) == is_sharded]
        return group | {"params": chosen}
    parts = [part(group, is_sharded) for group in groups for is_sharded in (True, False)]
    return [group for group in parts if group["params"]]


def whole_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Full weights by name, on every rank. Queries, keys and values stay in the order of `divide_heads`."""
    def whole(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return {name: whole(tensor.detach()).clone() for name, tensor in model.state_dict().items()}


def in_order_of_parts(state: dict[str, torch.Tensor], ranks: int) -> dict[str, torch.Tensor]:
    """Restores the order of the rows of queries, keys and values that `divide_heads` changed."""
    def restored(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if ".attn.qkv." not in name:
            return tensor
        rows = torch.arange(len(tensor)).reshape(ranks, 3, -1).transpose(0, 1).flatten()
        return tensor[rows]
    return {name: restored(name, tensor) for name, tensor in state.items()}
