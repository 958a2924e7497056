"""`torchrun -m hansa.torchtitan [torchtitan's options]`."""

from __future__ import annotations

import os
import sys

from hansa.errors import Unfit, exit_status
from hansa.torchtitan import versions


def main() -> None:
    """Runs torchtitan with this package's trainer."""
    with exit_status():
        versions.check()
        # Only now: there may be no torch.
        from hansa.torchtitan import cpu

        cpu.install()
        from torchtitan.train import main as torchtitan_main

        if "RANK" not in os.environ:
            raise Unfit(
                "start it with torchrun, also for one rank: torchrun --nproc-per-node 1 -m hansa.torchtitan"
            )
        if any(word.split("=")[0] == "--module" for word in sys.argv[1:]):
            raise Unfit("--module would train without Hansa: leave that option out")
        sys.argv[1:1] = ["--module", "hansa.torchtitan"]
        if not any(word.split("=")[0] == "--config" for word in sys.argv[1:]):
            sys.argv[1:1] = ["--config", "qwen3"]
        torchtitan_main()


if __name__ == "__main__":
    main()
