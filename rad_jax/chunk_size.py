"""How many seeds go together, on how many devices."""

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

from rad_jax import checks, devices


class Size(NamedTuple):
    """How a sweep is cut.

    Attributes:
      num_devices: over which the runs of a chunk are spread.
      seeds_per_chunk: seeds computed together.
      num_chunks: how often.
      num_bytes: estimated memory on all devices together.
    """

    num_devices: int
    seeds_per_chunk: int
    num_chunks: int
    num_bytes: int


def size(
    num_seeds: int,
    shared_bytes: int,
    groups: Sequence[tuple[int, int]],
    *,
    seeds_per_chunk: int | None = None,
    num_devices: int | None = None,
) -> Size:
    """How many seeds go together, on how many devices.

    Args:
      num_seeds: all of them.
      shared_bytes: what each device holds whatever the number of seeds.
      groups: for each group of runs, how many of them a seed has and the bytes of one.
        Each group is spread over the devices, and filled up, by itself.
      seeds_per_chunk: by default as many as half of the free memory holds, and on CPU
        no more than the greater of `devices.CPU_BYTES` and `shared_bytes` a device (up
        to twice that where fewer runs only fill up chunks and devices), in chunks of
        about the same number.
      num_devices: by default all, but no more than there are runs, nor, where devices
        share their memory (CPU), than leave room for a seed.

    Raises:
      TypeError: for what is no whole number.
      ValueError: there are fewer devices, or fewer seeds than a chunk is to have.
    """
    if seeds_per_chunk is not None:
        checks.whole("seeds_per_chunk", seeds_per_chunk)
    if seeds_per_chunk is not None and not 1 <= seeds_per_chunk <= num_seeds:
        raise ValueError(
            f"seeds_per_chunk={seeds_per_chunk} must lie in 1..{num_seeds}: there are "
            f"num_seeds={num_seeds} seeds"
        )

    def num_bytes(together: int, count: int) -> int:
        filled = (count * math.ceil(together * runs / count) * b for runs, b in groups)
        return count * shared_bytes + sum(filled)

    def limit(count: int) -> float:
        free = devices.free_bytes(count)
        return math.inf if free is None else devices.MEMORY_SHARE * free

    on_cpu = devices.mesh().devices.flat[0].platform == "cpu"
    most_runs = max(runs for runs, _ in groups)
    if num_devices is None:
        together = seeds_per_chunk or num_seeds
        count = min(devices.mesh().size, most_runs * together)
        while on_cpu and count > 1 and num_bytes(1, count) > limit(count):
            count -= 1
    else:
        count = devices.mesh(num_devices).size
    if seeds_per_chunk is None:
        fitting = bisect.bisect_right(
            range(1, num_seeds + 1), limit(count), key=lambda n: num_bytes(n, count)
        )
        least = most = max(1, fitting)
        if on_cpu:
            seed_bytes = max(1, sum(runs * b for runs, b in groups))
            fast = count * max(devices.CPU_BYTES, shared_bytes)
            # Every device has a run of its own, where that many fit.
            least = max(fast // seed_bytes, math.ceil(count / most_runs))
            least = min(most, least)
            most = min(most, max(least, 2 * fast // seed_bytes))

        def computed(together: int) -> tuple[int, int]:
            """Runs of all chunks; the fewer seeds first."""
            runs = sum(count * math.ceil(together * runs / count) for runs, _ in groups)
            return math.ceil(num_seeds / together) * runs, together

        numbers = range(math.ceil(num_seeds / most), math.ceil(num_seeds / least) + 1)
        seeds_per_chunk = min((math.ceil(num_seeds / k) for k in numbers), key=computed)
    return Size(
        count,
        seeds_per_chunk,
        math.ceil(num_seeds / seeds_per_chunk),
        num_bytes(seeds_per_chunk, count),
    )
