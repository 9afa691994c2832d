"""The numbers that the paper reports, for comparison with measured ones.

From D. I. Dimitrov, M. Balunović, N. Konstantinov, M. Vechev, "Data Leakage in Federated Averaging", Transactions on
Machine Learning Research, 2022: Tables 1 to 4 and 6 to 11 (Table 5 lists networks). Means over 100 clients. Settings of
the form 10x5x50 are epochs x batch size x images. Tables 6 to 10 are on FEMNIST, 10x5x50 unless they say otherwise.
"""

from workbench.attack.methods import PAPER_METHODS

__all__ = ["PAPER_METHODS", "TRAINED", "Published", "published"]

# From measure to number, e.g. {"recovered": 65.5, "psnr": 21.5}.
Published = dict[str, float]

# The digests of the networks of Table 7 after their rounds of training, see `plan.digest_of_weights`.
TRAINED = {"083c564ae861b64b": 5, "7d180229fe66feda": 10}

_LABEL_METHODS = ("interpolated", "geng_server", "geng_client")

# By table and data set; percent recovered and PSNR in dB of every method, in the order of PAPER_METHODS, unless said.
_PAIRS: dict[tuple[int, str], dict[str, tuple[tuple[float, float], ...]]] = {
    (1, "femnist"): {
        "1x5x50": ((42.3, 19.7), (42.3, 19.7), (42.3, 19.7), (37.7, 19.5), (37.7, 19.5)),
        "5x5x50": ((63.1, 21.2), (56.2, 20.7), (59.0, 20.6), (56.1, 20.4), (13.7, 17.4)),
        "10x10x50": ((63.8, 21.3), (58.5, 20.9), (62.0, 20.7), (60.2, 20.6), (11.8, 17.2)),
        "10x5x50": ((65.5, 21.5), (50.6, 20.3), (59.9, 20.3), (56.0, 19.6), (8.3, 16.7)),
        "10x1x50": ((49.5, 20.1), (21.5, 16.7), (14.9, 16.1), (1.6, 4.5), (5.2, 16.6)),
    },
    (1, "cifar100"): {
        "1x5x50": ((9.1, 16.2), (9.1, 16.2), (9.1, 16.2), (7.7, 16.1), (7.7, 16.1)),
        "5x5x50": ((55.2, 19.2), (53.0, 19.1), (10.8, 16.4), (10.9, 16.3), (1.2, 14.2)),
        "10x10x50": ((62.7, 20.3), (60.1, 20.0), (23.8, 17.2), (26.2, 17.4), (0.6, 13.8)),
        "10x5x50": ((58.8, 19.8), (56.4, 19.6), (15.7, 16.4), (8.5, 15.0), (0.4, 13.2)),
        "10x1x50": ((12.2, 15.4), (11.0, 15.2), (0.4, 12.5), (0.0, 8.9), (1.3, 12.8)),
    },
    # Wrong labels of 50, mean and standard deviation over clients, in the order of _LABEL_METHODS.
    (2, "femnist"): {
        "1x5x50": ((3.4, 2.01), (3.2, 1.84), (3.6, 2.07)),
        "5x5x50": ((3.4, 2.1), (7.8, 6.77), (3.2, 1.92)),
        "10x10x50": ((3.2, 1.94), (8.2, 7.06), (3.2, 1.96)),
        "10x5x50": ((5.2, 2.98), (9.2, 4.35), (5.2, 3.55)),
        "10x1x50": ((14.0, 6.28), (15.4, 4.73), (13.3, 6.35)),
    },
    (2, "cifar100"): {
        "1x5x50": ((4.2, 1.41), (3.9, 1.3), (4.6, 1.55)),
        "5x5x50": ((3.2, 1.24), (7.6, 1.83), (2.5, 1.09)),
        "10x10x50": ((2.8, 1.22), (8.1, 1.84), (2.0, 0.86)),
        "10x5x50": ((4.9, 1.57), (12.2, 1.96), (5.2, 1.45)),
        "10x1x50": ((8.1, 1.77), (10.2, 1.95), (15.7, 3.48)),
    },
    (3, "femnist"): {
        "1x5x50": ((37.2, 19.3), (37.2, 19.3), (37.2, 19.3), (35.7, 19.2), (35.7, 19.2)),
        "5x5x50": ((51.9, 20.3), (47.5, 20.1), (40.8, 19.5), (47.0, 19.8), (12.5, 17.3)),
        "10x10x50": ((55.0, 20.5), (50.0, 20.2), (45.7, 19.7), (50.0, 19.9), (10.6, 17.0)),
        "10x5x50": ((48.5, 20.2), (43.0, 19.8), (43.6, 19.3), (45.8, 19.1), (7.2, 16.6)),
        "10x1x50": ((21.4, 18.3), (14.5, 16.9), (7.5, 15.2), (1.1, 3.6), (4.7, 16.5)),
    },
    (3, "cifar100"): {
        "1x5x50": ((5.0, 15.7), (5.0, 15.7), (5.0, 15.7), (4.8, 15.7), (4.8, 15.7)),
        "5x5x50": ((46.7, 18.5), (45.0, 18.3), (7.0, 15.8), (7.7, 15.8), (0.8, 14.1)),
        "10x10x50": ((54.3, 19.4), (52.0, 19.1), (15.1, 16.5), (18.8, 16.7), (0.5, 13.7)),
        "10x5x50": ((46.0, 18.5), (43.2, 18.2), (8.7, 15.7), (8.1, 14.9), (0.6, 13.1)),
        "10x1x50": ((6.7, 14.7), (5.7, 14.6), (0.4, 11.9), (0.1, 9.0), (1.4, 12.7)),
    },
    # With the method ours_prior.
    (4, "femnist"): {
        "mean, l1": ((61.6, 21.2),),
        "conv+mean, l1": ((61.5, 21.2),),
        "max, l1": ((36.8, 19.2),),
        "conv+max, l1": ((56.0, 20.7),),
        "mean, l2": ((65.5, 21.5),),
        "conv+mean, l2": ((64.4, 21.4),),
        "max, l2": ((39.6, 19.4),),
        "conv+max, l2": ((63.6, 21.2),),
    },
    (4, "cifar100"): {
        "mean, l1": ((55.1, 19.5),),
        "conv+mean, l1": ((56.0, 19.6),),
        "max, l1": ((56.9, 19.6),),
        "conv+max, l1": ((58.0, 19.8),),
        "mean, l2": ((56.0, 19.5),),
        "conv+mean, l2": ((56.3, 19.6),),
        "max, l2": ((56.0, 19.6),),
        "conv+max, l2": ((58.8, 19.8),),
    },
    (6, "femnist"): {
        "none": ((65.5, 21.5), (50.6, 20.3), (59.9, 20.3), (56.0, 19.6), (8.3, 16.7)),
        "gaussian 0.01": ((48.0, 20.2), (36.8, 19.1), (25.0, 18.3), (24.9, 17.9), (7.5, 16.6)),
        "gaussian 0.03": ((17.2, 16.8), (13.1, 15.5), (2.8, 13.0), (4.5, 13.2), (4.5, 15.6)),
        "laplacian 0.01": ((38.9, 19.4), (29.3, 18.4), (14.9, 17.1), (15.6, 16.7), (6.6, 16.4)),
        "laplacian 0.02": ((19.0, 17.0), (14.4, 15.7), (3.7, 13.4), (5.0, 13.5), (4.8, 15.7)),
        "pruning 0.2": ((51.5, 20.4), (40.2, 19.5), (40.5, 19.2), (40.8, 18.9), (9.2, 17.0)),
        "pruning 0.5": ((27.6, 18.7), (22.3, 18.1), (18.3, 17.5), (18.6, 17.5), (10.2, 17.2)),
    },
    (7, "femnist"): {
        "round 1": ((65.5, 21.5), (50.6, 20.3), (59.9, 20.3), (56.0, 19.6), (8.3, 16.7)),
        "round 6": ((58.8, 20.8), (27.4, 16.2), (39.2, 17.9), (22.8, 15.6), (7.3, 15.4)),
        "round 11": ((38.4, 18.0), (7.4, 13.1), (21.3, 15.4), (10.8, 13.2), (5.9, 15.4)),
    },
    (8, "femnist"): {
        "per batch, random": ((68.2, 21.7), (52.8, 20.4), (68.4, 21.1), (56.0, 19.6), (8.3, 16.7)),
        "per batch, same": ((63.4, 21.3), (49.4, 20.1), (63.4, 20.6), (52.7, 19.4), (7.9, 16.7)),
        "per client, random": ((65.5, 21.5), (50.6, 20.3), (59.9, 20.3), (56.0, 19.6), (8.3, 16.7)),
        "per client, same": ((60.7, 21.1), (46.6, 19.9), (55.4, 20.0), (52.7, 19.4), (7.9, 16.7)),
    },
    (9, "femnist"): {
        "5x5 as 5x5": ((63.1, 21.2), (56.2, 20.7), (59.0, 20.6), (56.1, 20.4), (13.7, 17.4)),
        "5x5 as 10x10": ((55.8, 20.7), (55.2, 20.6), (53.8, 20.1), (53.8, 20.1), (12.7, 17.3)),
        "5x5 as 25x25": ((51.0, 20.2), (51.7, 20.3), (40.5, 19.0), (39.7, 19.0), (11.4, 17.1)),
        "5x5 as 50x50": ((52.0, 20.2), (51.4, 20.2), (34.3, 18.5), (34.6, 18.5), (10.8, 17.0)),
    },
    (10, "femnist"): {
        "1 client": ((65.5, 21.5), (50.6, 20.3), (59.9, 20.3), (56.0, 19.6), (8.3, 16.7)),
        "2 clients": ((42.1, 19.8), (32.3, 18.7), (27.6, 18.3), (25.7, 17.7), (6.8, 16.1)),
        "4 clients": ((29.7, 18.8), (24.8, 17.8), (14.8, 17.0), (14.3, 16.3), (5.7, 15.5)),
    },
}

# Table 6: accuracy in percent on the test set after 250 rounds.
_ACCURACIES: dict[str, float] = {
    "none": 70.09,
    "gaussian 0.01": 68.91,
    "gaussian 0.03": 66.14,
    "laplacian 0.01": 68.88,
    "laplacian 0.02": 65.94,
    "pruning 0.2": 68.84,
    "pruning 0.5": 66.62,
}

# Table 11: hours for 100 clients on an NVIDIA RTX 2080 Ti, in the order of PAPER_METHODS.
_HOURS: dict[str, dict[str, tuple[float, ...]]] = {
    "femnist": {
        "1x5x50": (0.5, 0.5, 0.5, 0.25, 0.25),
        "5x5x50": (2.25, 2.25, 2.0, 0.75, 0.25),
        "10x10x50": (2.5, 2.5, 2.5, 1.25, 0.25),
        "10x5x50": (4.25, 4.25, 4.5, 1.5, 0.25),
        "10x1x50": (7.5, 7.5, 7.5, 1.25, 0.5),
    },
    "cifar100": {
        "1x5x50": (3.5, 3.5, 3.5, 3.0, 3.0),
        "5x5x50": (18.0, 17.0, 17.0, 14.5, 3.0),
        "10x10x50": (35.5, 30.5, 35.0, 28.5, 3.0),
        "10x5x50": (36.0, 35.5, 33.5, 29.0, 3.0),
        "10x1x50": (7.0, 5.5, 5.5, 29.0, 3.5),
    },
}


def published(table: int, dataset: str, setting: str, method: str) -> Published:
    """What the paper reports in one line of a table; empty where it reports nothing.

    >>> published(1, "femnist", "10x5x50", "ours_prior")
    {'recovered': 65.5, 'psnr': 21.5}
    >>> published(11, "femnist", "10x5x50", "ours_prior")
    {'seconds': 153.0}
    >>> published(1, "glyphs", "4x4x16", "ours_prior")
    {}
    """
    if method == "accuracy":
        return {"accuracy": _ACCURACIES[setting]} if dataset == "femnist" and setting in _ACCURACIES else {}
    if table == 11:
        hours = dict(zip(PAPER_METHODS, _HOURS.get(dataset, {}).get(setting, ()), strict=False))
        return {"seconds": hours[method] * 3600 / 100} if method in hours else {}
    methods = _LABEL_METHODS if table == 2 else PAPER_METHODS
    measures = ("errors", "deviation") if table == 2 else ("recovered", "psnr")
    pairs = dict(zip(methods, _PAIRS.get((table, dataset), {}).get(setting, ()), strict=False))
    return dict(zip(measures, pairs[method], strict=True)) if method in pairs else {}
