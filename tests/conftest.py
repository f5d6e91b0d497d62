"""Settings of every test: devices, strictness, property tests, data."""

import gc
import os
import sys
from pathlib import Path

_FLAG = "--xla_force_host_platform_device_count"
#: The suite compiles much and runs little.
_COMPILE_FAST = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could set XLA_FLAGS")
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    # JAX reads it once. JAX_PLATFORMS is left to whoever runs the tests.
    os.environ["XLA_FLAGS"] = " ".join(
        [os.environ.get("XLA_FLAGS", ""), f"{_FLAG}=4", _COMPILE_FAST]
    ).strip()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import matplotlib as mpl  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
    "rad_jax",
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("rad_jax")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory):
    """Keeps prepared data sets out of the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        # matplotlib's list of fonts takes seconds to make: it stays where it was.
        patch.setenv("MPLCONFIGDIR", mpl.get_cachedir())
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _drop_compiled_programs():
    """Frees compiled programs after each file.

    Every program of XLA's CPU backend maps memory several times over, and a process may
    have 65,530 mappings (Linux): thousands of programs end in a segmentation fault.
    """
    yield
    for name in ("rad_jax.program", "rad_jax.offline"):
        for value in vars(sys.modules.get(name, sys)).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real data sets, named by the environment variable RAD_JAX_DATA."""
    name = os.environ.get("RAD_JAX_DATA")
    if not name:
        pytest.skip("RAD_JAX_DATA does not name a folder of data sets")
    path = Path(name)
    if not path.is_dir():
        pytest.skip(f"RAD_JAX_DATA={name} is not a folder")
    return path
