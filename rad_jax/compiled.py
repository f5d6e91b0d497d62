"""Functions compiled ahead of time, and buffers that they may overwrite."""

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import jax
import jax.numpy as jnp

from rad_jax.types import PyTree


class Compiled:
    """A jitted function compiled ahead of time, once for each set of shapes.

    Attributes:
      seconds: that callers have waited for tracing and compiling.
    """

    def __init__(self, function: Callable, **options: Any) -> None:
        self._jitted = jax.jit(function, **options)
        self._compiled: dict[Any, Any] = {}  # executables, or futures of them
        self.seconds = 0.0

    def eval_shape(self, *args):
        """Shapes and dtypes of the results."""
        return jax.eval_shape(self._jitted, *args)

    def nbytes(self, *args) -> int:
        """Bytes of arguments, results and temporaries, as the compiler plans them.

        Args:
          *args: arrays, or their shapes and dtypes; nothing is run.
        """
        planned = self._compile(*args).memory_analysis()
        return (
            planned.argument_size_in_bytes
            + planned.output_size_in_bytes
            + planned.temp_size_in_bytes
            - planned.alias_size_in_bytes
        )

    def __call__(self, *args):
        """Runs it, compiling first if these shapes are new."""
        return self._compile(*args)(*args)

    def trace(self, pool: Executor, *args) -> None:
        """Traces it if these shapes are new, and leaves the compilation to `pool`.

        Args:
          pool: works meanwhile; the next call waits for it.
          *args: arrays, or their shapes and dtypes; nothing is run.
        """
        key = self._key(args)
        if key not in self._compiled:
            begin = time.perf_counter()
            self._compiled[key] = pool.submit(self._jitted.lower(*args).compile)
            self.seconds += time.perf_counter() - begin

    def _compile(self, *args):
        key = self._key(args)
        known = self._compiled.get(key)
        if known is None or isinstance(known, Future):
            begin = time.perf_counter()
            try:
                known = known.result() if known else self._jitted.lower(*args).compile()
            except BaseException:
                self._compiled.pop(key, None)
                raise
            self._compiled[key] = known
            self.seconds += time.perf_counter() - begin
        return known

    @staticmethod
    def _key(args: tuple) -> Any:
        leaves, tree = jax.tree.flatten(args)
        return tree, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)


def unalias(tree: PyTree) -> PyTree:
    """Copies leaves that share a buffer, which could not be donated twice."""
    seen: set[int] = set()

    def own(leaf):
        raw = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        pointers = {
            shard.data.unsafe_buffer_pointer() for shard in raw.addressable_shards
        }
        if pointers & seen:
            return jnp.copy(leaf)
        seen.update(pointers)
        return leaf

    return jax.tree.map(own, tree)


def _is_key(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
