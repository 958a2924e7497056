"""A plain PyTorch model as a replica of a run:

    hansa agent --coordinator URL --token-file FILE --site NAME --replica r0 --corpus DIR \\
        -- python examples/plain_pytorch.py

The model must have the tensors of the run's recipe. `qwen3.py` beside this file is one that has them.
"""

import torch
from qwen3 import Qwen3

import hansa
from hansa.errors import exit_status
from hansa.link import run_description


def loss_sum(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum of the cross-entropy over all targets, in nats."""
    logits = model(inputs).flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")


def main() -> None:
    """The loop."""
    recipe = run_description()["recipe"]
    model = Qwen3(recipe["model"])
    inner = recipe["inner"]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        betas=(inner["beta1"], inner["beta2"]),
        eps=inner["eps"],
        weight_decay=inner["weight_decay"],
    )
    for step in hansa.Session(model, optimizer, loss_sum):
        optimizer.zero_grad()
        loss = loss_sum(model, step.inputs, step.targets) / step.tokens
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), inner["clip_norm"])
        optimizer.step()
        step.done(loss, norm)


if __name__ == "__main__":
    with exit_status():
        main()
