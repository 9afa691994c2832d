"""Forward and backward pass of local training, compiled for this processor: `simulation.cc`, called from within JAX.

XLA runs a simulated client as a few thousand small operations; one function in C++ does the same work in a half to a
third of the time. It is optional and automatic: ``python -m workbench.native`` (which ``make setup`` runs) compiles it
once with the installed C++ compiler and stores it in the user's cache. Without the library, on accelerators, for other
number types and for unsupported networks, `workbench.training.sgd` computes the same results, up to rounding, in JAX.
Set ``WORKBENCH_NATIVE=0`` in the environment to disable it. `library` compiles and loads it, `binding` calls it.
"""

from workbench.training.native.binding import Trajectory, advice, backward, can_train, forward, kept_floats
from workbench.training.native.library import CannotCompileError, build, library_path

__all__ = [
    "CannotCompileError",
    "Trajectory",
    "advice",
    "backward",
    "build",
    "can_train",
    "forward",
    "kept_floats",
    "library_path",
]
