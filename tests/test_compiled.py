"""Functions compiled once per shape, now or by another thread meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from test_sweep import Compilations

from rad_jax.compiled import Compiled

VALUES = jnp.arange(4.0)


def test_what_was_traced_is_compiled_once():
    traced = []

    def double(x):
        traced.append(x.shape)
        return 2 * x

    function = Compiled(double)
    with ThreadPoolExecutor(1) as pool:
        with Compilations() as compilations:
            function.trace(pool, VALUES)
            function.trace(pool, VALUES)  # the first time is enough
            assert traced == [(4,)]
            assert function(VALUES).tolist() == [0, 2, 4, 6]
        assert sum("double" in name for name in compilations.all) == 1
        others = VALUES + 1
        with Compilations() as compilations:
            function.trace(pool, VALUES)
            assert function(others).tolist() == [2, 4, 6, 8]
            assert function.nbytes(VALUES) >= 2 * VALUES.nbytes
        assert compilations.all == []
        assert traced == [(4,)]
        function.trace(pool, jnp.arange(3))
        assert function(jnp.arange(3)).tolist() == [0, 2, 4]
    assert traced == [(4,), (3,)]


def test_shapes_are_enough_to_trace():
    function = Compiled(lambda x: x + 1)
    with ThreadPoolExecutor(1) as pool:
        function.trace(pool, jax.ShapeDtypeStruct((4,), jnp.float32))
        assert function(VALUES).tolist() == [1, 2, 3, 4]


def test_what_goes_wrong_while_tracing_is_raised_at_once():
    def fails(x):
        raise ValueError("no such shape")

    function = Compiled(fails)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            with pytest.raises(ValueError, match="no such shape"):
                function.trace(pool, VALUES)
            with pytest.raises(ValueError, match="no such shape"):
                function(VALUES)


def test_what_goes_wrong_while_compiling_is_raised_once(monkeypatch):
    """By the call that needs it; the next one compiles."""
    function = Compiled(lambda x: x - 1)
    compile_ = jax.stages.Lowered.compile
    ran_in = []

    def out_of_memory(self, *args, **kwargs):
        ran_in.append(threading.current_thread())
        raise MemoryError("while compiling")

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(jax.stages.Lowered, "compile", out_of_memory)
        function.trace(pool, VALUES)
        with pytest.raises(MemoryError, match="while compiling"):
            function(VALUES)
        monkeypatch.setattr(jax.stages.Lowered, "compile", compile_)
        assert function(VALUES).tolist() == [-1, 0, 1, 2]
    assert ran_in != [threading.current_thread()]
    assert len(ran_in) == 1
