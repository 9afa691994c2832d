"""The methods: one record each, with everything that the rest of the code asks about a method.

A new method is a new record here, and where it simulates in a new way, a new function in `attack.simulate`.
"""

from dataclasses import dataclass
from enum import Enum

__all__ = ["METHODS", "PAPER_METHODS", "Method", "Simulated"]


class Simulated(Enum):
    """What a method simulates of the client's training."""

    BATCHES = "every local step, batch by batch"
    EPOCHS = "one step per epoch on all images"
    ONE_STEP = "one step on all images"
    POINTS = "gradients at points between the server's and the client's weights"


@dataclass(frozen=True)
class Method:
    """How a method attacks.

    Attributes:
        name: in code and on the command line.
        label: for people.
        paper_name: in the paper's tables; empty where the paper does not have it.
        simulated: what it simulates of the client's training.
        is_separate: whether every epoch has its own images (E x N variables), or one set serves all epochs (N).
        has_prior: whether the order-invariant epoch prior is part of its loss.
        can_warm_start: whether it may start from the surrogate's result; the baselines may not, or they would no longer
            be baselines.
    """

    name: str
    label: str
    paper_name: str
    simulated: Simulated
    is_separate: bool = False
    has_prior: bool = False
    can_warm_start: bool = False


METHODS = {
    method.name: method
    for method in (
        Method(
            "ours_prior",
            "Ours (prior)",
            "Ours (prior)",
            Simulated.BATCHES,
            is_separate=True,
            has_prior=True,
            can_warm_start=True,
        ),
        Method(
            "ours_no_prior",
            "Ours (no prior)",
            "Ours (no prior)",
            Simulated.BATCHES,
            is_separate=True,
            can_warm_start=True,
        ),
        Method("shared", "Shared", "Shared", Simulated.BATCHES, can_warm_start=True),
        Method("fedsgd_epoch", "FedSGD-Epoch", "FedSGD-Epoch", Simulated.EPOCHS),
        Method("fedsgd", "FedSGD", "FedSGD", Simulated.ONE_STEP),
        Method("surrogate", "Surrogate", "", Simulated.POINTS),
    )
}
"""Every method by name, the paper's first and in its order."""

PAPER_METHODS = tuple(method.name for method in METHODS.values() if method.paper_name)
