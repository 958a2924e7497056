"""The server: FedAvg as shipped, which notes when each round begins."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmove.shapes import shapes

app = ServerApp()


class TimedFedAvg(FedAvg):
    """FedAvg that remembers when it began each round."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.began_s: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Notes the time; then as FedAvg does."""
        self.began_s.append(time.time())
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Averages so many rounds and writes the times of their beginnings, and of the end."""
    config = context.run_config
    random = np.random.default_rng(1)
    arrays = ArrayRecord(
        {
            name: Array(random.standard_normal(shape, dtype=np.float32))
            for name, shape in shapes(str(config["model"])).items()
        }
    )
    strategy = TimedFedAvg()
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(config["rounds"]))
    times = [*strategy.began_s, time.time()]
    Path(str(config["out"])).write_text(json.dumps(times))
