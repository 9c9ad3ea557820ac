"""Digits with torch's DDP: torchrun --nproc-per-node 2 examples/digits_ddp.py."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import paceline.zoo

EPOCHS = 4
dist.init_process_group("gloo")
torch.manual_seed(0)
data = paceline.zoo.load_data("digits")
sampler = DistributedSampler(data.train)
loader = DataLoader(data.train, batch_size=32, sampler=sampler, drop_last=True)
model = network = paceline.zoo.build_model("small-cnn")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
network = torch.nn.parallel.DistributedDataParallel(model)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()

images, labels = data.test.tensors
accuracy = (model.eval()(images).argmax(-1) == labels).double().mean().item()
print(f"worker {dist.get_rank()}: accuracy {accuracy:.1%}")
dist.barrier()
dist.destroy_process_group()
