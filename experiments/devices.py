"""The devices that scripts use, and where compiled programs are kept."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

import jax
from absl import flags

FLAGS = flags.FLAGS
#: Of flags; see `experiments.flags`.
GROUP = "compilation"


def define_flags() -> None:
    """Defines the flags of this module; a second call changes nothing."""
    if "compilation_cache_dir" in FLAGS:
        return
    flags.DEFINE_string(
        "compilation_cache_dir",
        None,
        "Where compiled programs are kept; by default $XDG_CACHE_HOME/rad_jax/xla or "
        "~/.cache/rad_jax/xla, nowhere if empty.",
        module_name=GROUP,
    )


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_up() -> None:
    """Makes a CPU device of each core, and keeps compiled programs.

    To be called before JAX computes anything.
    """
    use_all_cores()
    defined = "compilation_cache_dir" in FLAGS
    keep_programs(FLAGS.compilation_cache_dir if defined else None)


def use_all_cores() -> None:
    """One CPU device per core, over which runs are spread.

    To be called before JAX computes anything; without effect on accelerators, or if
    XLA_FLAGS or JAX_NUM_CPU_DEVICES says how many CPU devices there are.
    """
    said = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not said and "JAX_NUM_CPU_DEVICES" not in os.environ:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", num_cores())


def keep_programs(directory: str | None) -> Path | None:
    """Keeps compiled programs on disk, so that a later process need not compile them.

    Args:
      directory: where; None for the user's cache, empty for nowhere. Programs of
        another processor, which would not run here, lie in another subfolder.

    Returns:
      The folder; None if there is none, or nothing can be written there.

    Raises:
      OSError: the directory was named, and nothing can be written to it.
    """
    if directory == "":
        return None
    try:
        folder = Path(directory or _users_cache()).expanduser() / _processor()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("no permission to write")
    except (OSError, RuntimeError) as error:  # the latter: there is no home
        if directory is None:
            return None
        reason = getattr(error, "strerror", None) or error
        raise OSError(
            f"--compilation_cache_dir={directory} cannot be written to ({reason})"
        ) from error
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return folder


def _users_cache() -> Path:
    """Where compiled programs are kept unless a flag says."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache, "rad_jax", "xla")


def _processor() -> str:
    """A name for what this processor can do."""
    able = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines():
            if line.startswith(("flags", "Features")):
                able = line
                break
    digest = hashlib.blake2b(able.encode(), digest_size=6).hexdigest()
    return f"{platform.machine()}-{digest}"
