"""How a script ends."""

import os

import pytest

from experiments import command, devices


@pytest.fixture(autouse=True)
def no_set_up(monkeypatch):
    """JAX is set up by `conftest`, and keeps no programs."""
    monkeypatch.setattr(devices, "set_up", lambda: None)


def test_what_went_wrong_is_one_line():
    def work():
        raise ValueError("--flag must be small, got 9")

    with pytest.raises(SystemExit, match=r"^error: --flag must be small, got 9$"):
        command.call(["script"], work)
    with pytest.raises(SystemExit, match="unknown arguments: a b"):
        command.call(["script", "a", "b"], work)


def test_an_interrupt_ends_at_once(monkeypatch, capsys):
    """Without the teardown in which XLA crashes."""

    class Ended(BaseException):
        pass

    def end(status):
        raise Ended(status)

    def work():
        print("half a line", end="")
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended, match="130"):
        command.call(["script"], work)
    assert capsys.readouterr() == ("half a line", "interrupted\n")
