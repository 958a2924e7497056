"""A session against an agent that is played by the test."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_corpus_and_tensors import SEQ_LEN, write_corpus
from torch import nn

import hansa
from hansa.errors import exit_status

VOCAB = 16


class Bigram(nn.Module):
    """One matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


def loss_sum(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(inputs).flatten(0, 1)
    return nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")


Script = Callable[[Callable[..., dict[str, Any]]], None]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Script], list[Any]]]:
    """Plays a script of questions; returns what went wrong in it."""
    write_corpus(tmp_path, "u16", [list(range(13))])
    run = {
        "protocol": 1,
        "corpus": str(tmp_path),
        "tensors": [{"name": "table.weight", "shape": [VOCAB, VOCAB]}],
        "recipe": {},
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    monkeypatch.setenv("HANSA_AGENT_SOCKET", path)
    monkeypatch.setenv("HANSA_RUN_FILE", str(tmp_path / "run.json"))
    threads: list[threading.Thread] = []

    def play(script: Script) -> list[Any]:
        wrong: list[Any] = []

        def serve() -> None:
            connection, _ = listener.accept()
            lines = connection.makefile("rb")
            numbers = iter(range(1, 1000))

            def send(message: dict[str, Any]) -> None:
                connection.sendall(json.dumps(message).encode() + b"\n")

            def ask(do: str, **values: Any) -> dict[str, Any]:
                number = next(numbers)
                send({"id": number, "do": do, **values})
                answer = json.loads(lines.readline())
                assert answer["id"] == number
                return answer

            try:
                hello = json.loads(lines.readline())["hello"]
                assert hello["tensors"] == run["tensors"], hello
                send({"welcome": {"protocol": 1, "run": run}})
                script(ask)
                assert ask("end", why="test") == {"id": next(numbers) - 1, "ok": {}}
            except Exception as error:
                wrong.append(error)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        threads.append(thread)
        return wrong

    yield play
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def train(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for step in hansa.Session(model, optimizer, loss_sum):
        optimizer.zero_grad()
        loss = loss_sum(model, step.inputs, step.targets) / step.tokens
        loss.backward()
        optimizer.step()
        step.done(loss)


def test_weights_go_out_and_come_back_and_a_restored_checkpoint_repeats_the_step(
    agent: Callable[[Script], list[Any]], tmp_path: Path
) -> None:
    def script(ask: Callable[..., dict[str, Any]]) -> None:
        model, other = str(tmp_path / "a"), str(tmp_path / "b")
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        assert ask("export", to=model)["ok"] == {}
        first = ask("step", windows=[0, 2], lr=0.1)["ok"]
        assert first["tokens"] == 2 * SEQ_LEN
        assert ask("save", folder=str(folder))["ok"] == {}
        second = ask("step", windows=[1], lr=0.1)["ok"]
        assert ask("restore", folder=str(folder))["ok"] == {}
        assert ask("step", windows=[1], lr=0.1)["ok"] == second
        # The first weights again, with fresh moments: the first step again.
        assert ask("load", model=model)["ok"] == {}
        assert ask("moments", folder=None)["ok"] == {}
        assert ask("step", windows=[0, 2], lr=0.1)["ok"] == first
        assert ask("export", to=other)["ok"] == {}
        assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()

    wrong = agent(script)
    train(Bigram())
    assert wrong == []


def test_what_cannot_be_done_is_answered_and_training_goes_on(
    agent: Callable[[Script], list[Any]], tmp_path: Path
) -> None:
    def script(ask: Callable[..., dict[str, Any]]) -> None:
        assert ask("load", model=str(tmp_path / "none"))["error"]["kind"] == "failed"
        assert ask("evaluate", first=0, end=1)["error"]["kind"] == "failed"
        assert ask("export", to="/dev/full")["error"]["kind"] == "no_space"
        assert ask("step", windows=[0], lr=0.1)["ok"]["tokens"] == SEQ_LEN
        # A rate that no weight survives.
        ask("step", windows=[0], lr=1e36)
        ask("step", windows=[0], lr=1e36)
        error = ask("export", to=str(tmp_path / "m"))["error"]
        assert error["kind"] == "non_finite" and "table.weight" in error["why"]
        assert not (tmp_path / "m").exists()

    wrong = agent(script)
    train(Bigram())
    assert wrong == []


def test_without_an_agent_it_says_how_to_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HANSA_RUN_FILE", raising=False)
    with pytest.raises(SystemExit) as ended, exit_status():
        train(Bigram())
    assert ended.value.code == 78
    assert "hansa agent" in capsys.readouterr().err
