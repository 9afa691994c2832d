"""What every test runs under: strict JAX on the CPU, a compilation cache, and hypothesis without chance."""

import os
import signal

import hypothesis
import pytest

hypothesis.settings.register_profile("workbench", derandomize=True, deadline=None)
hypothesis.settings.load_profile("workbench")


def pytest_configure(config: pytest.Config) -> None:
    # Started in the background, a process ignores Ctrl-C and so do its children, among them those that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # In the environment and before JAX is imported, so that the kernels and commands that tests start have it too.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

    import jax

    # JAX reads the environment once: where something imported it earlier, only this reaches it.
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
