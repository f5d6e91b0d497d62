"""The README's Python blocks run as they are written."""

import re
from pathlib import Path

import jax
import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number, capsys):
    # Users do not run with the strict setting of the tests.
    with jax.numpy_rank_promotion("allow"):
        exec(compile(BLOCKS[number], f"README block {number}", "exec"), {})
    if "print(" in BLOCKS[number]:
        assert capsys.readouterr().out.strip()


def test_there_are_blocks():
    assert len(BLOCKS) >= 4
