"""Settings as frozen records: checked when they are made, named as the paper names them in words."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from workbench.errors import ConfigError, check_choice, check_count, check_flag, check_kind, check_number, shown

__all__ = [
    "COMBINATIONS",
    "DEFENCES",
    "DISTANCES",
    "LABEL_METHODS",
    "LABEL_ORDERS",
    "MATCHINGS",
    "METHODS",
    "PRESETS",
    "PRIOR_DISTANCES",
    "PRIOR_WEIGHTS",
    "SUMMARIES",
    "AttackConfig",
    "ClientConfig",
    "DefenceConfig",
]

DEFENCES = ("none", "gaussian", "laplacian", "pruning", "dp_sgd")


@dataclass(frozen=True)
class DefenceConfig:
    """What a client does to its gradients before it uses them (the paper's Appendix C.1).

    Attributes:
        name: ``none``; ``gaussian`` or ``laplacian`` noise on each example's gradient; ``pruning`` of its entries; or
            ``dp_sgd``, which clips each example's gradient and adds Gaussian noise to the sum of the batch.
        strength: the standard deviation (gaussian), the scale b (laplacian), the probability that an entry is set to
            zero (pruning), or the noise multiplier (dp_sgd): the noise on the sum has standard deviation
            strength * clip_norm.
        clip_norm: the largest norm of one example's gradient, over all layers together (dp_sgd only).
        independent: new draws in every step, as a real client makes them. False repeats those of the first epoch in
            every epoch, as the paper's experiments did.
    """

    name: str = "none"
    strength: float = 0.0
    clip_norm: float | None = None
    independent: bool = True

    def __post_init__(self) -> None:
        check_choice("defence", self.name, DEFENCES)
        most = 1.0 if self.name == "pruning" else float("inf")
        object.__setattr__(self, "strength", check_number("defence.strength", self.strength, minimum=0, maximum=most))
        if self.name == "dp_sgd":
            object.__setattr__(self, "clip_norm", check_number("defence.clip_norm", self.clip_norm, above=0))
        elif self.clip_norm is not None:
            raise ConfigError(
                f"defence.clip_norm = {shown(self.clip_norm)} belongs to 'dp_sgd'; leave it out for {self.name!r}."
            )
        check_flag("defence.independent", self.independent)
        if self.name == "none" and self.strength:
            raise ConfigError(
                f"defence.strength = {self.strength!r} needs a defence; name one of: {', '.join(DEFENCES[1:])}."
            )


@dataclass(frozen=True)
class ClientConfig:
    """How a client trains (the paper's Algorithm 1).

    Attributes:
        epochs: E, passes over the client's images.
        batch_size: m; a ragged last batch is used as it is.
        learning_rate: of the local SGD steps.
        same_batches: True keeps the first epoch's batches in every epoch, False draws them anew.
        defence: what happens to the gradients.

    >>> ClientConfig(epochs=10, batch_size=5).local_steps(num_images=50)
    100
    """

    epochs: int = 10
    batch_size: int = 5
    learning_rate: float = 0.004
    same_batches: bool = False
    defence: DefenceConfig = DefenceConfig()

    def __post_init__(self) -> None:
        object.__setattr__(self, "epochs", check_count("epochs", self.epochs))
        object.__setattr__(self, "batch_size", check_count("batch_size", self.batch_size))
        object.__setattr__(self, "learning_rate", check_number("learning_rate", self.learning_rate, above=0))
        check_flag("same_batches", self.same_batches)
        check_kind("defence", self.defence, DefenceConfig)

    def batches_per_epoch(self, num_images: int) -> int:
        """B, counting a ragged last batch."""
        num_images = check_count("num_images", num_images)
        if self.batch_size > num_images:
            raise ConfigError(f"batch_size = {self.batch_size} must be at most the number of images, {num_images}.")
        return -(-num_images // self.batch_size)

    def local_steps(self, num_images: int) -> int:
        """U = E * B, the SGD steps that the client makes."""
        return self.epochs * self.batches_per_epoch(num_images)


METHODS = ("ours_prior", "ours_no_prior", "shared", "fedsgd_epoch", "fedsgd", "surrogate")
DISTANCES = ("layer_weighted_l2", "l2", "cosine")
SUMMARIES = ("mean", "max", "conv+mean", "conv+max")
PRIOR_DISTANCES = ("l1", "l2")
LABEL_METHODS = ("interpolated", "geng_server", "geng_client", "bias", "refined")
LABEL_ORDERS = ("random", "sorted")
MATCHINGS = ("images", "labels")
COMBINATIONS = ("mean", "median")
PRESETS = ("demo", "paper", "best")
PRESET_DATASETS = ("femnist", "cifar100")

# The prior's weight for every choice of summary and distance, as in the paper's experiments.
PRIOR_WEIGHTS: dict[str, dict[tuple[str, str], float]] = {
    "femnist": {
        ("max", "l1"): 77.298,
        ("conv+max", "l1"): 81.365,
        ("mean", "l1"): 250.846,
        ("conv+mean", "l1"): 263.623,
        ("max", "l2"): 92.378,
        ("conv+max", "l2"): 97.776,
        ("mean", "l2"): 1000.0,
        ("conv+mean", "l2"): 1054.413,
    },
    "cifar100": {
        ("max", "l1"): 4.848,
        ("conv+max", "l1"): 5.0,
        ("mean", "l1"): 15.708,
        ("conv+mean", "l1"): 16.206,
        ("max", "l2"): 5.814,
        ("conv+max", "l2"): 6.075,
        ("mean", "l2"): 62.675,
        ("conv+mean", "l2"): 65.573,
    },
}


@dataclass(frozen=True)
class AttackConfig:
    """How the server attacks an update (the paper's Algorithm 2).

    The loss is ``update_weight * distance + prior_weight * epoch prior + tv_weight * total variation + clip_weight *
    pixel range + consensus_weight * consensus``.

    Attributes:
        method: ``ours_prior`` and ``ours_no_prior`` simulate the client with separate images for every epoch,
            ``shared`` with the same images in every epoch; ``fedsgd_epoch`` simulates one step an epoch, ``fedsgd`` one
            step in all; ``surrogate`` takes gradients at a few points between the server's and the client's weights.
        steps: optimisation steps.
        distance: between the observed and the simulated update: squared L2 with each layer weighted by exp(-layer), as
            in the paper's experiments, plain squared L2, or cosine, as in its text.
        update_weight: the distance's weight at the first step and from step ``update_weight_steps`` on; it moves
            geometrically between them.
        prior: g, what summarises an epoch whatever its order.
        prior_distance: D, how the summaries of two epochs are compared.
        step_size: of Adam, multiplied by ``step_decay`` every ``step_decay_every`` steps, continuously.
        label_method: how label counts are recovered, where they are not given.
        label_order: how labels are assigned to batches.
        match: which reconstructions of two epochs may show the same image: any, by the likeness of the ``images`` alone
            (the paper's), or only those to which the attacker gave the same label (``labels``).
        combine: how the matched reconstructions of an image become one.
        warm_start_steps: steps of the surrogate before the method itself, which starts from its result plus normal
            noise of standard deviation ``warm_start_noise``, or from noise alone where that explains the update better.
        surrogate_points: points of the segment between the weights (Gauss-Legendre nodes).
        consensus_weight: pull each image towards the median of its matched epochs, from step ``consensus_start`` of the
            method on, matched again every ``consensus_every`` steps.
        epochs: E as the attacker believes it; None takes the observation's.
        batch_size: m as the attacker believes it; None takes the observation's.
        low_memory: compute parts of the simulation twice to need less memory; None decides by the device's memory.
    """

    method: str = "ours_prior"
    steps: int = 400
    distance: str = "layer_weighted_l2"
    update_weight: tuple[float, float] = (1.0, 2.0)
    update_weight_steps: int = 200
    prior: str = "mean"
    prior_distance: str = "l2"
    prior_weight: float = 1000.0
    tv_weight: float = 0.001
    clip_weight: float = 2.0
    step_size: float = 0.4
    step_decay: float = 0.995
    step_decay_every: int = 10
    label_method: str = "interpolated"
    label_order: str = "random"
    match: str = "images"
    combine: str = "mean"
    warm_start_steps: int = 0
    warm_start_noise: float = 0.1
    surrogate_points: int = 2
    consensus_weight: float = 0.0
    consensus_start: int = 30
    consensus_every: int = 10
    epochs: int | None = None
    batch_size: int | None = None
    low_memory: bool | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("method", METHODS),
            ("distance", DISTANCES),
            ("prior", SUMMARIES),
            ("prior_distance", PRIOR_DISTANCES),
            ("label_method", LABEL_METHODS),
            ("label_order", LABEL_ORDERS),
            ("match", MATCHINGS),
            ("combine", COMBINATIONS),
        ):
            check_choice(name, getattr(self, name), choices)
        for name, least in (
            ("steps", 1),
            ("update_weight_steps", 1),
            ("step_decay_every", 1),
            ("warm_start_steps", 0),
            ("surrogate_points", 1),
            ("consensus_start", 0),
            ("consensus_every", 1),
        ):
            object.__setattr__(self, name, check_count(name, getattr(self, name), minimum=least))
        for name in ("prior_weight", "tv_weight", "clip_weight", "consensus_weight", "warm_start_noise"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), minimum=0))
        for name in ("step_size", "step_decay"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), above=0))
        if not isinstance(self.update_weight, tuple | list) or len(self.update_weight) != 2:
            raise ConfigError(f"update_weight = {self.update_weight!r} must be a pair: at the first step, and later.")
        first, later = (check_number("update_weight", w, above=0) for w in self.update_weight)
        object.__setattr__(self, "update_weight", (first, later))
        for name in ("epochs", "batch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if self.low_memory is not None:
            check_flag("low_memory", self.low_memory)

    @staticmethod
    def preset(name: str, dataset: str = "femnist", **changes: Any) -> AttackConfig:
        """A named set of settings, with changes.

        ``demo`` takes seconds, for looking and testing; ``paper`` is the published recipe; ``best`` is ours.
        ``femnist`` settings serve ``glyphs`` too, ``cifar100`` settings ``photos``.

        >>> AttackConfig.preset("paper", dataset="cifar100", steps=200).prior
        'conv+max'
        """
        check_choice("preset", name, PRESETS)
        check_choice("dataset", dataset, (*PRESET_DATASETS, "glyphs", "photos"))
        dataset = real_twin(dataset)
        settings = {**_PRESETS["paper", dataset], **_PRESETS[name, dataset]}
        unknown = sorted(set(changes) - {field.name for field in fields(AttackConfig)})
        if unknown:
            check_choice("setting", unknown[0], [field.name for field in fields(AttackConfig)])
        chosen = {**settings, **changes}
        pair = (chosen["prior"], chosen["prior_distance"])
        if "prior_weight" not in changes and pair in PRIOR_WEIGHTS[dataset]:
            chosen["prior_weight"] = PRIOR_WEIGHTS[dataset][pair] * _PRIOR_SHARES.get((name, dataset), 1.0)
        return AttackConfig(**chosen)


def real_twin(dataset: str) -> str:
    """The real data set whose settings and network serve a bundled one; any other is its own."""
    return {"glyphs": "femnist", "photos": "cifar100"}.get(dataset, dataset)


_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("paper", "femnist"): {"prior": "mean", "prior_distance": "l2"},
    ("paper", "cifar100"): {
        "update_weight": (4.0, 2.0),
        "prior": "conv+max",
        "prior_distance": "l2",
        "tv_weight": 0.0002,
        "clip_weight": 10.0,
        "step_size": 0.1,
        "step_decay": 0.997,
        "step_decay_every": 20,
    },
}
_WARM: dict[str, Any] = {
    "warm_start_steps": 200,
    "consensus_weight": 3.0,
    "combine": "median",
    "label_method": "bias",
}
for _dataset in PRESET_DATASETS:
    _PRESETS["demo", _dataset] = {**_WARM, "warm_start_steps": 50, "steps": 60}
    _PRESETS["best", _dataset] = {
        **_WARM,
        "warm_start_steps": 100,
        "steps": 225,
        "match": "labels",
        "label_method": "refined",
    }
# Where there is but one epoch, nothing averages the restlessness of large steps away: they become smaller.
_PRESETS["best", "femnist"] |= {"step_decay": 0.96}
# Epochs that start alike and are pulled together need less of the prior, which would only slow them down.
_PRIOR_SHARES = {("best", "femnist"): 0.3}
# Short as it is, the demo gains from trusting the update from the start.
_PRESETS["demo", "femnist"] |= {
    "warm_start_steps": 150,
    "steps": 100,
    "update_weight": (2.0, 2.0),
    "label_order": "sorted",
}
