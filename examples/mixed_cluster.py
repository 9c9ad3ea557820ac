"""Digits on unequal workers: torchrun --nproc-per-node 2 examples/mixed_cluster.py.

On a lab whose second node is half as fast:
paceline lab run --nodes 2 --workers 1 --slow 1:0=2 -- python examples/mixed_cluster.py.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import paceline
import paceline.zoo

EPOCHS, GLOBAL_BATCH = 4, 128
dist.init_process_group("gloo")
torch.manual_seed(0)
data = paceline.zoo.load_data("digits")
model = paceline.zoo.build_model("small-cnn")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
pace = paceline.attach(model, optimizer, "sync")
loader = pace.loader(data.train, GLOBAL_BATCH, shuffle=True)  # instead of torch's DataLoader

for epoch in range(EPOCHS):
    for images, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: shares of the batch {loader.shares}")

pace.finish()
images, labels = data.test.tensors
accuracy = (model.eval()(images).argmax(-1) == labels).double().mean().item()
print(f"worker {dist.get_rank()}: accuracy {accuracy:.1%}")
pace.detach()
dist.barrier()
dist.destroy_process_group()
