"""Between an agent and its trainer: starts the trainer, passes every line on, and writes it down.

hansa agent … -- python record.py RECORD.jsonl -- torchrun … -m hansa.torchtitan
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import BinaryIO


def main() -> None:
    """Ends with the trainer's exit status."""
    record, separator, *command = sys.argv[1:]
    assert separator == "--", __doc__
    folder = tempfile.mkdtemp(prefix="hansa-record-")
    path = os.path.join(folder, "agent.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    agent = socket.socket(socket.AF_UNIX)
    agent.connect(os.environ["HANSA_AGENT_SOCKET"])
    trainer = subprocess.Popen(command, env=os.environ | {"HANSA_AGENT_SOCKET": path})
    connection, _ = listener.accept()
    with open(record, "w", encoding="utf-8") as out:
        keep = Path(record).parent
        from_trainer = threading.Thread(
            target=relay, args=(connection.makefile("rb"), agent, "trainer", out, keep), daemon=True
        )
        from_trainer.start()
        relay(agent.makefile("rb"), connection, "agent", out, keep)
        status = trainer.wait()
        from_trainer.join(5)
    shutil.rmtree(folder)
    sys.exit(status)


def relay(lines: BinaryIO, to: socket.socket, who: str, out: object, keep: Path) -> None:
    """Every line from one side to the other, with the time at which it came."""
    for line in lines:
        at = time.perf_counter()
        message = json.loads(line)
        if message.get("do") == "load":
            # The session removes models that it does not need any more.
            shutil.copy(message["model"], keep / Path(message["model"]).name)
        try:
            to.sendall(line)
        except OSError:
            return
        print(json.dumps({"at": at, "who": who, "said": message}), file=out, flush=True)


if __name__ == "__main__":
    main()
