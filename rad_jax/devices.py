"""Devices over which runs are spread: a mesh, what fits on it, and its memory.

A mesh has one axis, "runs". Arrays that all runs share are held by every device; arrays
of runs are cut along it, filled up with copies of the last run where they do not
divide.
"""

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rad_jax import checks
from rad_jax.types import PyTree

#: On every device.
SHARED = P()
#: Cut along the first axis.
RUNS = P("runs")
#: Share of the free memory that a computation may take.
MEMORY_SHARE = 0.5
#: Bytes of the runs that a CPU device works on at a time, unless what they share takes
#: more. Beyond it is slower: far from the cache, and pages are given back to the system
#: and faulted in at every call.
CPU_BYTES = 1 << 28


def mesh(num_devices: int | None = None) -> Mesh:
    """A mesh of this process's devices.

    Args:
      num_devices: how many; by default all.

    Raises:
      TypeError: that is no whole number.
      ValueError: there are not as many.
    """
    devices = jax.local_devices()
    if num_devices is None:
        num_devices = len(devices)
    checks.whole("num_devices", num_devices)
    if not 1 <= num_devices <= len(devices):
        raise ValueError(
            f"num_devices={num_devices} must lie in 1..{len(devices)}: this process "
            f"has {len(devices)} {devices[0].platform} devices"
        )
    return Mesh(np.array(devices[:num_devices]), ("runs",), axis_types=(AxisType.Auto,))


def fill_up(num_runs: int, size: int) -> np.ndarray:
    """Positions ``0..num_runs-1``, and the last once more until they divide by `size`.

    Args:
      num_runs: at least 1.
      size: of the mesh.

    Returns:
      ``[R]`` int64, R the least multiple of `size` that is not below `num_runs`.
    """
    index = np.arange(size * math.ceil(num_runs / size))
    return np.minimum(index, num_runs - 1)


def over_runs(
    function: Callable, mesh: Mesh, in_specs: PyTree, out_specs: PyTree
) -> tuple[Callable, dict[str, Any]]:
    """The function as each device applies it to its own runs.

    Args:
      function: of arrays of runs, and of shared ones, vmapped already.
      mesh: of one device: then nothing changes.
      in_specs: `SHARED` or `RUNS` for each argument, or a tree of them.
      out_specs: likewise of the results.

    Returns:
      A function to be compiled, and the options with which `jax.jit` is to do it.
    """
    if mesh.size == 1:
        return function, {}
    spread = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,  # loops of learners carry what only some devices vary
    )

    def placed(specs: PyTree) -> PyTree:
        return jax.tree.map(
            lambda spec: NamedSharding(mesh, spec),
            specs,
            is_leaf=lambda x: isinstance(x, P),
        )

    options = {"in_shardings": placed(in_specs), "out_shardings": placed(out_specs)}
    return spread, options


def put(tree: PyTree, mesh: Mesh, spec: P = SHARED) -> PyTree:
    """Puts all arrays of a tree on a mesh, `SHARED` or cut along an axis."""
    placing = NamedSharding(mesh, spec)

    def one(x: Any) -> Any:
        # Cutting an array that is on a device takes a program of its own to compile.
        is_key = jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.extended)
        return jax.device_put(x if spec == SHARED or is_key else np.asarray(x), placing)

    return jax.tree.map(one, tree)


def free_bytes(devices: int | None = None) -> int | None:
    """Memory that is free on some devices together, None if that cannot be told.

    Args:
      devices: the first so many of this process; by default all. Devices of one host's
        CPU share its memory.
    """
    chosen = jax.local_devices()[:devices]
    stats = chosen[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return len(chosen) * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return _host_bytes()


def _host_bytes() -> int | None:
    """Free memory of this host, or of the container this process may use of it."""
    known = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                known.append(1024 * int(line.split()[1]))
    known += group_bytes(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    if not known:
        with contextlib.suppress(ValueError, OSError, AttributeError):
            known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    return min(known, default=None)


#: Files of a control group: limit, use, and what of it is given back if needed.
_GROUP_FILES = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def group_bytes(membership: Path, root: Path) -> list[int]:
    """What the control groups of this process, and those above them, leave free.

    Args:
      membership: `/proc/self/cgroup`: lines of hierarchy, controllers and path.
      root: where groups are mounted.

    Returns:
      Bytes, for each group with a limit.
    """
    known = []
    with contextlib.suppress(OSError, ValueError):
        for line in membership.read_text(encoding="utf-8").splitlines():
            number, controllers, path = line.split(":", 2)
            unified = number == "0" and not controllers
            if not unified and "memory" not in controllers.split(","):
                continue
            top = root if unified else root / "memory"
            limit_file, used_file, cached_name = _GROUP_FILES[unified]
            inner = top / path.lstrip("/")
            for group in (inner, *(p for p in inner.parents if p.is_relative_to(top))):
                with contextlib.suppress(OSError, ValueError):  # "max": no limit
                    limit = int((group / limit_file).read_text(encoding="ascii"))
                    used = int((group / used_file).read_text(encoding="ascii"))
                    stats = (group / "memory.stat").read_text(encoding="ascii").split()
                    cached = int(stats[stats.index(cached_name) + 1])
                    known.append(max(0, limit - used + cached))
    return known
