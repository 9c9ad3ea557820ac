"""A model sharded by FSDP2 inside each node, trained with DASO between the nodes.

paceline lab run --nodes 2 --workers 2 -- python examples/fsdp_daso.py
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import paceline.zoo

EPOCHS = 5
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
num_local = int(os.environ["LOCAL_WORLD_SIZE"])
nodes = dist.get_world_size() // num_local
mesh = init_device_mesh(device, (nodes, num_local), mesh_dim_names=("node", "shard"))

torch.manual_seed(0)
data = paceline.zoo.load_data("digits")
sampler = DistributedSampler(data.train)
loader = DataLoader(data.train, batch_size=32, sampler=sampler, drop_last=True)
model = paceline.zoo.build_model("small-cnn").to(device)
for block in model.children():
    if any(True for _ in block.parameters()):
        fully_shard(block, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])  # inside the node; paceline averages between nodes
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
pace = paceline.attach(model, optimizer, "daso", total_steps=EPOCHS * len(loader))

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()

pace.finish()  # every node now holds the same model
images, labels = data.test.tensors
with torch.no_grad():
    found = model.eval()(images.to(device)).argmax(-1)
accuracy = (found == labels.to(device)).double().mean().item()
print(f"worker {dist.get_rank()}: accuracy {accuracy:.1%}")
pace.detach()
dist.barrier()
dist.destroy_process_group()
