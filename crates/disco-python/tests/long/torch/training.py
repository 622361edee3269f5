"""DDP, FSDP2, a split network and a distributed tensor: the losses of some steps, as a dict."""

import sys

import disco.torch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()


def network():
    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)]
    return nn.Sequential(*layers)


def train(model, optimiser, seed):
    """The mean loss of each step over all ranks."""
    numbers, losses = torch.Generator().manual_seed(seed), []
    for _ in range(8):
        x = torch.randn(16, 32, generator=numbers)
        y = torch.randn(16, 8, generator=numbers)
        optimiser.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimiser.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
    return losses


found = {}
model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
found["DDP"] = train(model, torch.optim.SGD(model.parameters(), 0.05), rank)

model = network()
for layer in (layer for layer in model if isinstance(layer, nn.Linear)):
    fully_shard(layer)
fully_shard(model)
found["FSDP2"] = train(model, torch.optim.Adam(model.parameters(), 0.01), rank)

mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
found["tensor parallel"] = train(model, torch.optim.SGD(model.parameters(), 0.05), 3)

whole = torch.arange(24.0).reshape(8, 3)
tensor = distribute_tensor(whole, mesh, [Shard(0)])
found["DTensor"] = [
    tensor.redistribute(mesh, [Replicate()]).to_local().sum().item(),
    tensor.redistribute(mesh, [Shard(1)]).to_local().sum().item(),
    tensor.sum().full_tensor().item(),
]
print(found)
dist.destroy_process_group()
