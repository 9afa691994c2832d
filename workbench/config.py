"""The settings of client, defence and attack: frozen records, checked when they are made, each field declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.attack.methods import METHODS
from workbench.errors import ConfigError, check_choice, check_kind, check_number, shown
from workbench.presets import PRESETS, PRIOR_WEIGHTS, preset_settings, real_twin
from workbench.settings import check_settings, setting, settings_of
from workbench.training.local import LocalTraining
from workbench.training.schedule import Schedule

__all__ = [
    "COMBINATIONS",
    "DEFENCES",
    "DISTANCES",
    "LABEL_FORMULAS",
    "LABEL_METHODS",
    "LABEL_ORDERS",
    "LARGEST_STRENGTHS",
    "MATCHINGS",
    "PRESETS",
    "PRIOR_DISTANCES",
    "PRIOR_WEIGHTS",
    "SUMMARIES",
    "USUAL_STRENGTHS",
    "WEIGHTS",
    "AttackConfig",
    "ClientConfig",
    "DefenceConfig",
    "LocalTraining",
    "label_of",
    "real_twin",
]

DEFENCES = ("none", "gaussian", "laplacian", "pruning", "dp_sgd")
# A strength to start from, and the largest, for each defence.
USUAL_STRENGTHS = {"gaussian": 0.1, "laplacian": 0.1, "pruning": 0.9, "dp_sgd": 0.1}
LARGEST_STRENGTHS = {"none": 0.0, "gaussian": 1e3, "laplacian": 1e3, "pruning": 1.0, "dp_sgd": 1e3}
DISTANCES = ("layer_weighted_l2", "l2", "cosine")
WEIGHTS = ("absolute", "relative")
SUMMARIES = ("mean", "max", "conv+mean", "conv+max")
PRIOR_DISTANCES = ("l1", "l2")
LABEL_FORMULAS = ("interpolated", "geng_server", "geng_client", "bias")
# The last one runs a short attack.
LABEL_METHODS = (*LABEL_FORMULAS, "refined")
LABEL_ORDERS = ("random", "sorted")
MATCHINGS = ("images", "labels")
COMBINATIONS = ("mean", "median")


@dataclass(frozen=True)
class DefenceConfig:
    """What a client does to its gradients before it uses them (the paper's Appendix C.1).

    ``gaussian`` and ``laplacian`` add noise to each example's gradient, ``pruning`` sets entries of it to zero, and
    ``dp_sgd`` clips each example's gradient and adds Gaussian noise to the sum of the batch.
    """

    name: str = setting(
        "none",
        "Defence",
        "Defence that the client applies to its gradients in every local step.",
        section="Appendix C.1",
        choices=DEFENCES,
        option="defence",
    )
    strength: float = setting(
        0.0,
        "Strength",
        "Standard deviation (gaussian), scale b (laplacian), probability that an entry becomes zero (pruning), or "
        "noise multiplier (dp_sgd: the noise on the sum has standard deviation strength * clip_norm). Noise of 0.01 to "
        "0.1 and pruning of 0.5 to 0.99 are usual; 0 is no defence.",
        section="Appendix C.1",
        minimum=0,
    )
    clip_norm: float | None = setting(
        None, "Clip norm", "Largest norm of one example's gradient over all layers (dp_sgd only).", above=0
    )
    independent: bool = setting(
        True,
        "New draws",
        "Whether the defence draws anew in every step, as a real client does, or repeats the draws of the first epoch "
        "in every epoch, as in the paper's experiments.",
        section="Appendix C.1",
        option="repeated-draws",
        is_negated=True,
    )

    def __post_init__(self) -> None:
        check_choice("defence", self.name, DEFENCES)
        check_settings(self, "defence.")
        if self.name == "dp_sgd" and self.clip_norm is None:
            raise ConfigError("defence.clip_norm = None must be a finite number greater than 0 for 'dp_sgd'.")
        if self.name != "dp_sgd" and self.clip_norm is not None:
            raise ConfigError(
                f"defence.clip_norm = {shown(self.clip_norm)} belongs to 'dp_sgd'; leave it out for {self.name!r}."
            )
        if self.name == "none" and self.strength:
            raise ConfigError(
                f"defence.strength = {self.strength!r} needs a defence; name one of: {', '.join(DEFENCES[1:])}."
            )
        check_number("defence.strength", self.strength, minimum=0, maximum=LARGEST_STRENGTHS[self.name])

    def __str__(self) -> str:
        if self.name == "none":
            return "none"
        clip = "" if self.clip_norm is None else f", clipped at {self.clip_norm:g}"
        return f"{self.name} of strength {self.strength:g}{clip}"


@dataclass(frozen=True, repr=False)
class ClientConfig(LocalTraining):
    """How a client trains (the paper's Algorithm 1); `LocalTraining` has the settings of its optimiser.

    >>> ClientConfig(epochs=10, batch_size=5).schedule(num_images=50).local_steps
    100
    """

    epochs: int = setting(
        10,
        "Epochs E",
        "Passes over the client's images in local training.",
        symbol="E",
        section="Section 3.1",
        minimum=1,
        aliases=("-e",),
    )
    batch_size: int = setting(
        5,
        "Batch size m",
        "Images in one local step; a ragged last batch is used as it is, unless drop_last is set.",
        symbol="m",
        section="Section 3.1",
        minimum=1,
        aliases=("-b",),
    )
    learning_rate: float = setting(
        0.004, "Learning rate", "Step size of the client's optimiser.", symbol="eta", section="Section 3.1", above=0
    )
    same_batches: bool = setting(
        False,
        "Same batches",
        "Use the first epoch's batches in every epoch instead of drawing new ones.",
        section="Appendix C.3",
    )
    defence: DefenceConfig = DefenceConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("defence", self.defence, DefenceConfig)

    def schedule(self, num_images: int) -> Schedule:
        """How training on this number of images is divided into batches and steps."""
        return Schedule(num_images, self.epochs, self.batch_size, self.drop_last)


@dataclass(frozen=True)
class AttackConfig:
    """How the server attacks an update (the paper's Algorithm 2).

    The loss is ``update_weight * distance + prior_weight * epoch prior + tv_weight * total variation + clip_weight *
    pixel range + consensus_weight * consensus + span_weight * size of the update * span residual``. docs/glossary.md
    lists every setting.
    """

    method: str = setting(
        "ours_prior",
        "Method",
        "How the client's training is simulated, and whether every epoch has its own images.",
        section="Sections 4.3 and 5.1",
        choices=tuple(METHODS),
    )
    steps: int = setting(
        400, "Steps", "Optimisation steps after the warm start.", section="Appendix B.2", minimum=1, maximum=2**30
    )
    distance: str = setting(
        "layer_weighted_l2",
        "Update distance",
        "Distance between the observed and the simulated update: squared L2 with layer l weighted by exp(-l), as in "
        "the paper's experiments; plain squared L2; or cosine, as in its text.",
        symbol="L_sim",
        section="Section 4.3",
        choices=DISTANCES,
    )
    update_weight: tuple[float, float] = setting(
        (1.0, 2.0),
        "Update",
        "Weight of the update distance, at the first step and from step update_weight_steps on; steering multiplies "
        "both.",
        section="Appendix B.2",
        above=0,
        slider=(1e-2, 1e2),
    )
    update_weight_steps: int = setting(
        200,
        "Update schedule",
        "Steps during which the weight of the update distance moves geometrically from its first value to its last.",
        section="Appendix B.2",
        minimum=1,
        is_detail=True,
    )
    prior: str = setting(
        "mean",
        "Prior g",
        "Order-invariant function that summarises the images of an epoch.",
        symbol="g",
        section="Section 4.4",
        choices=SUMMARIES,
    )
    prior_distance: str = setting(
        "l2",
        "Prior distance D",
        "Distance between the summaries of two epochs.",
        symbol="D_inv",
        section="Section 4.4",
        choices=PRIOR_DISTANCES,
    )
    prior_weight: float = setting(
        1000.0,
        "Epoch prior",
        "Weight of the order-invariant epoch prior; it follows the choice of g and D unless given.",
        symbol="lambda_inv",
        section="Section 4.4",
        minimum=0,
        slider=(1e-1, 1e4),
    )
    tv_weight: float = setting(
        0.001,
        "Smoothness (tv)",
        "Weight of the total variation of the images.",
        section="Appendix B.2",
        minimum=0,
        slider=(1e-5, 1e0),
    )
    clip_weight: float = setting(
        2.0,
        "Pixel range (clip)",
        "Weight of pixel values outside [0, 1].",
        section="Appendix B.2",
        minimum=0,
        slider=(1e-2, 1e2),
    )
    step_size: float = setting(
        0.4, "Step size", "Adam's step size before its decay.", section="Appendix B.2", above=0, slider=(1e-4, 1e1)
    )
    step_decay: float = setting(
        0.995,
        "Step decay",
        "Factor on the step size every step_decay_every steps, applied continuously.",
        section="Appendix B.2",
        above=0,
        is_detail=True,
    )
    step_decay_every: int = setting(
        10, "Step decay every", "Steps in which the step size decays by step_decay.", minimum=1, is_detail=True
    )
    label_method: str = setting(
        "interpolated",
        "Label counts",
        "Estimator of the label counts, where they are not known.",
        symbol="lambda",
        section="Section 4.5",
        choices=LABEL_METHODS,
        extra_choices=("known",),
        option="label-source",
    )
    label_order: str = setting(
        "random",
        "Label order",
        "How labels are assigned to the positions in batches: in random order, or sorted by class.",
        section="Section 4.2, RandOrder",
        choices=LABEL_ORDERS,
    )
    match: str = setting(
        "images",
        "Match",
        "What the matching of epochs compares: the images alone, as in the paper, or only images with the same assumed "
        "label.",
        section="Appendix A",
        choices=MATCHINGS,
    )
    combine: str = setting(
        "mean",
        "Combine",
        "How the matched reconstructions of an image become one.",
        section="Appendix A",
        choices=COMBINATIONS,
    )
    warm_start_steps: int = setting(
        0,
        "Warm start",
        "Steps of the surrogate before the method; 0 starts the method from noise.",
        minimum=0,
        maximum=2**30,
    )
    warm_start_noise: float = setting(
        0.1,
        "Warm start noise",
        "Standard deviation of the noise added to the warm start's images before the method starts from them.",
        minimum=0,
        is_detail=True,
    )
    surrogate_points: int = setting(
        2,
        "Surrogate points",
        "Gauss-Legendre nodes between the server's and the client's weights at which the surrogate takes gradients.",
        minimum=1,
        maximum=64,
        is_detail=True,
    )
    consensus_weight: float = setting(
        0.0,
        "Consensus",
        "Weight of the pull of every image towards the median of its matched epochs.",
        minimum=0,
        slider=(1e-2, 1e2),
    )
    consensus_start: int = setting(
        30,
        "Consensus start",
        "Step of the method at which epochs are first matched for the consensus.",
        minimum=0,
        is_detail=True,
    )
    consensus_every: int = setting(
        10, "Consensus every", "Steps between two matchings for the consensus.", minimum=1, is_detail=True
    )
    span_weight: float = setting(
        0.0,
        "Span",
        "Weight of the distance of every image to the span of a dense layer's update, relative to the size of the "
        "update; noise in the update lowers it.",
        minimum=0,
        slider=(1e-1, 1e4),
        since="0.2",
    )
    span_start: float = setting(
        0.001,
        "Span start",
        "Share of the span's weight at the first step; it rises geometrically to all of it.",
        above=0,
        maximum=1,
        is_detail=True,
        since="0.2",
    )
    span_rise: int = setting(
        100, "Span rise", "Steps in which the span's weight rises.", minimum=1, is_detail=True, since="0.2"
    )
    restart_every: int = setting(
        0,
        "Restart every",
        "Steps, from span_rise on, after which images that repeat another one or lie outside the span start again from "
        "noise, with a span weight that rises anew in as many steps; 0 never restarts any. For methods with one set of "
        "images.",
        minimum=0,
        is_detail=True,
        since="0.2",
    )
    noisy_method: str | None = setting(
        None,
        "Method with noise",
        "Method in place of method where noise hides the span, or there is none; the warm start then belongs to it "
        "alone. Unset uses method always, after the warm start.",
        choices=tuple(METHODS),
        is_detail=True,
        since="0.2",
    )
    weights: str = setting(
        "absolute",
        "Weights",
        "Whether the weights of prior, tv, clip, consensus and a custom term are numbers as they are, as in the paper, "
        "or relative to the size of the observed update.",
        choices=WEIGHTS,
        is_detail=True,
        since="0.2",
    )
    epochs: int | None = setting(
        None,
        "Believed E",
        "Number of epochs that the attacker assumes, if not the true one.",
        symbol="E",
        section="Appendix C.4",
        minimum=1,
        option="believed-epochs",
    )
    batch_size: int | None = setting(
        None,
        "Believed m",
        "Batch size that the attacker assumes, if not the true one.",
        symbol="m",
        section="Appendix C.4",
        minimum=1,
        option="believed-batch-size",
    )
    low_memory: bool | None = setting(
        None,
        "Low memory",
        "Compute parts of the simulation twice to save memory; unset decides by the free memory of the device.",
        is_detail=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def description(self) -> str:
        """The attack in words.

        >>> AttackConfig.preset("demo").description
        'Ours (prior) after a warm start of 150 steps, with a consensus of the epochs'
        >>> AttackConfig.preset("paper").description
        'Ours (prior)'
        """
        method = METHODS[self.method]
        parts = {
            f" after a warm start of {self.warm_start_steps} steps": self.warm_start_steps and not self.noisy_method,
            ", with a consensus of the epochs": self.consensus_weight and method.is_separate,
            ", guided by the span of the update": self.span_weight,
        }
        return method.label + "".join(part for part, applies in parts.items() if applies)

    @staticmethod
    def preset(name: str, dataset: str = "femnist", **changes: Any) -> AttackConfig:
        """A named set of settings, with changes.

        ``lesson`` is for seeing matching and averaging at work; ``demo`` takes seconds, for looking and testing;
        ``paper`` is the published recipe; ``warm`` adds a warm start and a consensus to it; ``best`` uses the span of a
        dense layer's update.
        ``femnist`` settings serve ``glyphs`` too, ``cifar100`` settings ``photos``. ``paper`` makes 400 steps where the
        text says 200: the scripts that produced the tables ran 400, and the text's 200 is the number of steps during
        which the weight of the update distance moves.

        >>> AttackConfig.preset("paper", dataset="cifar100", steps=200).prior
        'conv+max'
        """
        for changed in changes:
            check_choice("setting", changed, settings_of(AttackConfig))
        return AttackConfig(**preset_settings(name, dataset, changes))


def label_of(name: str) -> str:
    """What people call a setting of the attack or a term of its loss.

    >>> label_of("tv_weight"), label_of("tv"), label_of("custom")
    ('Smoothness (tv)', 'Smoothness (tv)', 'Custom term')
    """
    known = settings_of(AttackConfig)
    # The term "prior" is the epoch prior, and not its function g.
    found = known.get(f"{name}_weight") or known.get(name)
    return found.label if found else {"loss": "Loss"}.get(name, "Custom term")
