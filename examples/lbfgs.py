"""L-BFGS with a line search over all workers' data; three lines make it parallel.

torchrun --nproc-per-node 2 examples/lbfgs.py    # the same losses as: python examples/lbfgs.py
"""

import torch
from torch.nn.functional import cross_entropy

import paceline.zoo

torch.manual_seed(0)
inputs, targets = paceline.zoo.load_data("digits").train.tensors
model = paceline.zoo.build_model("mlp").double()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")


def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(images.double()), labels)


pace = paceline.attach(model, optimizer, "sync")  # changed
mine = slice(pace.workers.world.rank, None, pace.workers.world.size)  # changed
objective = pace.objective(loss_of, (inputs[mine], targets[mine]))  # changed: was a closure

for step in range(6):
    loss = optimizer.step(objective)
    if pace.workers.world.rank == 0:
        print(f"step {step}: loss {loss:.10f}")
pace.finish()
pace.detach()
torch.distributed.destroy_process_group()
