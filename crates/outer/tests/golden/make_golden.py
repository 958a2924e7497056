"""Writes outer_step.json: rounds of torch.optim.SGD as the outer optimiser, for tests/golden.rs.

Run with any recent PyTorch: python make_golden.py (writes beside itself).

Each round has a few contributions (pseudo-gradients) weighted by tokens; their weighted mean,
taken in float64, is the gradient of one optimiser step. Values are float32, printed exactly.
"""

import json
import pathlib

import torch

ELEMENTS = 29
ROUNDS = 6


def run(lr, momentum, contributions, generator):
    theta = torch.nn.Parameter(torch.randn(ELEMENTS, generator=generator))
    optimizer = torch.optim.SGD([theta], lr=lr, momentum=momentum, nesterov=momentum > 0)
    record = {
        "lr": lr,
        "momentum": momentum,
        "theta": theta.detach().tolist(),
        "rounds": [],
    }
    for _ in range(ROUNDS):
        tokens = torch.randint(1, 1_000_000, (contributions,), generator=generator)
        deltas = 0.02 * torch.randn(contributions, ELEMENTS, generator=generator)
        weights = tokens.double() / tokens.sum()
        theta.grad = (weights[:, None] * deltas.double()).sum(0).float()
        optimizer.step()
        buffer = optimizer.state[theta].get("momentum_buffer")
        record["rounds"].append(
            {
                "tokens": tokens.tolist(),
                "deltas": deltas.tolist(),
                "theta": theta.detach().tolist(),
                "momentum": None if buffer is None else buffer.tolist(),
            }
        )
    return record


def main():
    generator = torch.Generator().manual_seed(20240607)
    golden = {
        "torch": torch.__version__,
        "nesterov": run(0.7, 0.9, 3, generator),
        "fedavg": run(1.0, 0.0, 4, generator),
        "solo_full": run(1.0, 0.9, 1, generator),
    }
    path = pathlib.Path(__file__).with_name("outer_step.json")
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
