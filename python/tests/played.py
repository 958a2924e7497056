"""An agent that is played by a test, and trainers of several ranks that it asks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent


class Agent:
    """Started before the trainer, and asked from the test: `with Agent(folder, run) as agent`."""

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        self.folder, self.run = folder, run
        (folder / "run.json").write_text(json.dumps(run))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "s"))
        self._listener.listen()
        self._trainer: subprocess.Popen[str] | None = None
        self._asked = 0

    def environment(self) -> dict[str, str]:
        """What a trainer finds it by."""
        return {
            "HANSA_AGENT_SOCKET": str(self.folder / "s"),
            "HANSA_RUN_FILE": str(self.folder / "run.json"),
        }

    def start(self, ranks: int, *words: str) -> None:
        """Starts so many ranks of a script or a module, and welcomes them."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(ranks), *words]
        environment = {**os.environ, **self.environment(), "PYTHONPATH": str(PACKAGE)}
        environment |= {"OMP_NUM_THREADS": "1", "HANSA_CPU": "1"}
        with open(self.folder / "log", "w") as log:
            self._trainer = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, text=True
            )
        # A trainer that does not come is told by its log.
        self._listener.settimeout(0.2)
        while True:
            try:
                self._connection, _ = self._listener.accept()
                break
            except TimeoutError:
                assert self._trainer.poll() is None, self.log()
        self._connection.setblocking(True)
        self._lines = self._connection.makefile("rb")
        hello = self._read()
        assert hello["hello"]["ranks"] == ranks, hello
        self._send({"welcome": {"protocol": 1, "run": self.run}})

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """The answer to a question."""
        self._asked += 1
        self._send({"id": self._asked, "do": do, **values})
        while True:
            answer = self._read()
            assert answer["id"] == self._asked
            if "progress" not in answer:
                return answer

    def failed(self, do: str, **values: Any) -> int:
        """Asks what ends the trainer; its exit status."""
        self._asked += 1
        self._send({"id": self._asked, "do": do, **values})
        assert self._trainer is not None
        return self._trainer.wait()

    def end(self) -> None:
        """Tells it that it is over, and it ends well."""
        assert self.ask("end", why="test")["ok"] == {}
        assert self._trainer is not None
        assert self._trainer.wait() == 0, self.log()

    def log(self) -> str:
        """What it printed."""
        return (self.folder / "log").read_text()

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, self.log()
        message: dict[str, Any] = json.loads(line)
        return message

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        if self._trainer is not None and self._trainer.poll() is None:
            # torchrun ends its ranks.
            self._trainer.terminate()
            self._trainer.wait()
