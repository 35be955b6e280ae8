"""Models that ranks train together, as PyTorch does it: FSDP2 and tensor parallelism by DTensor, on timm's model."""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def shard(
    model: torch.nn.Module, mesh: DeviceMesh, reshard_after_forward: bool, precision: torch.dtype = torch.float32
) -> None:
    """Divides training state, block by block; the model computes, and gradients are sent, in this precision."""
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=precision)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=policy)
    # What is outside of blocks is needed again at once: never given back, which is PyTorch's default, too.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=policy)


def divide_heads(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Divides the heads and the MLP of each block. The model is the same on all ranks."""
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


def apart(groups: list[dict]) -> list[dict]:
    """Groups of parameters in which those that are divided are apart: fused optimizers take no mixture."""
    def part(group: dict, is_divided: bool) -> dict:
        chosen = [parameter for parameter in group["params"] if isinstance(parameter, DTensor) == is_divided]
        return group | {"params": chosen}
    parts = [part(group, is_divided) for group in groups for is_divided in (True, False)]
    return [group for group in parts if group["params"]]


def whole_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights by name, whole on every rank. Queries, keys and values are as `divide_heads` has left them."""
    def whole(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return {name: whole(tensor.detach()).clone() for name, tensor in model.state_dict().items()}


def in_order_of_parts(state: dict[str, torch.Tensor], ranks: int) -> dict[str, torch.Tensor]:
    """Undoes what `divide_heads` does to the rows of queries, keys and values."""
    def restored(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if ".attn.qkv." not in name:
            return tensor
        rows = torch.arange(len(tensor)).reshape(ranks, 3, -1).transpose(0, 1).flatten()
        return tensor[rows]
    return {name: restored(name, tensor) for name, tensor in state.items()}
