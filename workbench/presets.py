"""The named sets of attack settings, as data: the paper's recipe, two of ours, one to learn from, one to look at."""

from typing import Any

from workbench.errors import check_choice

__all__ = ["PRESETS", "PRIOR_WEIGHTS", "preset_settings", "real_twin"]

PRESETS = ("lesson", "demo", "paper", "warm", "best")
_DATASETS = ("femnist", "cifar100")

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
"""The prior's weight for every choice of g and D, as in the paper's experiments."""

_CONSENSUS: dict[str, Any] = {"consensus_weight": 3.0, "combine": "median", "label_method": "bias"}
_WARM: dict[str, Any] = {
    **_CONSENSUS,
    "warm_start_steps": 100,
    "steps": 225,
    "match": "labels",
    "label_method": "refined",
}
_BEST: dict[str, Any] = {
    "method": "shared",
    "steps": 350,
    "span_weight": 300.0,
    "span_start": 1 / 3000,
    # A slow rise leaves the images time to become different ones: two that have found the same picture stay there,
    # until one of them is restarted.
    "span_rise": 190,
    "restart_every": 80,
    # Where noise hides the span, separate epochs that are averaged are better.
    "noisy_method": "ours_prior",
    "warm_start_steps": 100,
    "consensus_weight": 0.05,
    "combine": "median",
    "match": "labels",
    "weights": "relative",
    "clip_weight": 0.01,
    "label_method": "refined",
}
# Every epoch starts from its own noise, so images of one class find different places in different epochs. The span term
# lets an epoch find single images instead of mixtures of a class, so that matching has something to match; the noise
# that large steps leave differs between epochs, so that averaging has something to average out.
_LESSON: dict[str, Any] = {
    "steps": 180,
    "span_weight": 200.0,
    "span_rise": 100,
    "tv_weight": 1e-5,
    "clip_weight": 1.0,
    "step_decay": 0.98,
}
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
    # A single epoch cannot average out step noise, so steps decay faster.
    ("warm", "femnist"): {**_WARM, "step_decay": 0.96},
    ("warm", "cifar100"): _WARM,
    ("best", "femnist"): {**_BEST, "tv_weight": 1e-5, "step_decay": 0.96},
    ("best", "cifar100"): {**_BEST, "tv_weight": 2e-7},
    ("lesson", "femnist"): _LESSON,
    ("lesson", "cifar100"): {**_LESSON, "step_decay_every": 10},
    # So few steps gain from the full weight of the update distance from the start.
    ("demo", "femnist"): {
        **_CONSENSUS,
        "warm_start_steps": 150,
        "steps": 100,
        "update_weight": (2.0, 2.0),
        "label_order": "sorted",
    },
    ("demo", "cifar100"): {**_CONSENSUS, "warm_start_steps": 50, "steps": 60},
}
# Epochs that start from the same images and have a consensus need less of the prior, which slows them down, and so do
# those that the span term guides. Weights of best are relative to the update, whose size with separate epochs is about
# 40 (FEMNIST) and 140 (CIFAR100).
_PRIOR_SHARES = {
    ("lesson", "femnist"): 0.1,
    ("lesson", "cifar100"): 0.1,
    ("warm", "femnist"): 0.3,
    ("best", "femnist"): 0.3 / 40,
    ("best", "cifar100"): 1 / 140,
}


def real_twin(dataset: str) -> str:
    """The real data set whose settings and network serve a bundled one; any other data set is returned as it is."""
    return {"glyphs": "femnist", "photos": "cifar100"}.get(dataset, dataset)


def preset_settings(name: str, dataset: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The settings of a preset for a data set, with changes; see `AttackConfig.preset`."""
    check_choice("preset", name, PRESETS)
    check_choice("dataset", dataset, (*_DATASETS, "glyphs", "photos"))
    dataset = real_twin(dataset)
    chosen = {**_PRESETS["paper", dataset], **_PRESETS[name, dataset], **changes}
    pair = (chosen["prior"], chosen["prior_distance"])
    if "prior_weight" not in changes and pair in PRIOR_WEIGHTS[dataset]:
        chosen["prior_weight"] = PRIOR_WEIGHTS[dataset][pair] * _PRIOR_SHARES.get((name, dataset), 1.0)
    return chosen
