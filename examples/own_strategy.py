"""A strategy of one's own: it trains, and is predicted for clusters nobody has started.

torchrun --nproc-per-node 2 examples/own_strategy.py
"""

import torch

import paceline


class EveryThird(paceline.Strategy):
    """Every worker trains alone; every third step all parameters are averaged."""

    def after_step(self) -> None:
        super().after_step()
        if self.step % 3 == 0:
            for parameter in self.replica.parameters:
                self.wait(self.workers.world.all_reduce(parameter.data, "mean"))


model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pace = paceline.attach(model, optimizer, EveryThird())
for _ in range(9):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
if pace.workers.world.rank == 0:
    step = paceline.load_step("resnet50", batch=64, precision="bf16")
    print(paceline.predict(step, cluster="dgx-h200", nodes=4, strategy=EveryThird()))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
