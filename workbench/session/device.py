"""Devices by name."""

import jax

from workbench.errors import ConfigError, shown

__all__ = ["find_device", "name_of"]


def find_device(device: str | jax.Device) -> jax.Device:
    """A JAX device by name.

    >>> find_device("cpu:0").platform
    'cpu'
    """
    if isinstance(device, jax.Device):
        return device
    if device == "auto":
        return jax.devices()[0]
    if not isinstance(device, str):
        raise ConfigError(f"device = {shown(device)} must be 'auto', a jax.Device or a name such as 'gpu:1'.")
    platform, _, index = device.partition(":")
    try:
        found = {str(number): candidate for number, candidate in enumerate(jax.devices(platform or "none"))}
        return found[index or "0"]
    except (RuntimeError, KeyError):
        known = ", ".join(map(name_of, jax.devices()))
        raise ConfigError(f"device = {device!r} is not there; JAX sees: {known}.") from None


def name_of(device: jax.Device) -> str:
    """The name by which `find_device` finds it, for example ``gpu:1``."""
    return f"{device.platform}:{device.id}"
