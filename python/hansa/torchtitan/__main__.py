"""`torchrun -m hansa.torchtitan [torchtitan's options]`."""

from __future__ import annotations

import sys

from hansa.errors import exit_status
from hansa.torchtitan import versions


def main() -> None:
    """Runs torchtitan with this package's trainer."""
    with exit_status():
        versions.check()
        # Only now: there may be no torch.
        from hansa.torchtitan import cpu

        cpu.install()
        from torchtitan.train import main as torchtitan_main

        if not any(word.split("=")[0] == "--module" for word in sys.argv[1:]):
            sys.argv[1:1] = ["--module", "hansa.torchtitan"]
        if not any(word.split("=")[0] == "--config" for word in sys.argv[1:]):
            sys.argv[1:1] = ["--config", "qwen3"]
        torchtitan_main()


if __name__ == "__main__":
    main()
