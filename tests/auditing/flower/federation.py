"""A small federation of two clients in NumPy, which the test runs in an environment with flwr.

    python federation.py server PORT FILE        a Flower server with a recorded strategy; ends after two rounds
    python federation.py client PORT NUMBER      a Flower client; ends when the server does
    python federation.py messages FILE           the message interface: Flower's own strategy and messages, one process

Of this file, the test's own environment uses the data and the settings, and nothing that needs flwr.
"""

import sys
from itertools import pairwise

import numpy as np

IMAGE_SHAPE, NUM_HIDDEN, NUM_CLASSES = (6, 6, 1), 16, 20
TRAINING = {"epochs": 2, "batch_size": 4, "learning_rate": 0.02}
NORMALIZATION = ((0.5,), (0.5,))
NUM_ROUNDS = RECORDED = 2


def data_of(number):
    """Pixels [N, H, W, C] and labels [N] of a client; each has other classes, and another N."""
    rng = np.random.default_rng(number)
    labels = np.array([[3, 3, 3, 8, 8, 11, 14, 14], [0, 5, 5, 9, 9, 9, 9, 16, 17, 17]][number])
    return rng.uniform(size=(len(labels), *IMAGE_SHAPE)).astype(np.float32), labels


def first_weights():
    rng = np.random.default_rng(7)
    sizes = (int(np.prod(IMAGE_SHAPE)), NUM_HIDDEN, NUM_CLASSES)
    kernels = [rng.normal(size=pair, scale=pair[0] ** -0.5) for pair in pairwise(sizes)]
    return [np.float32(array) for kernel in kernels for array in (kernel, np.zeros(kernel.shape[1]))]


def train(weights, number, epochs, batch_size, learning_rate):
    """Plain SGD on the mean cross entropy of a network with one hidden layer, written out."""
    first, first_bias, last, last_bias = (np.array(array, np.float64) for array in weights)
    pixels, labels = data_of(number)
    inputs = ((pixels - NORMALIZATION[0]) / NORMALIZATION[1]).reshape(len(pixels), -1)
    rng = np.random.default_rng(100 + number)
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(labels), batch_size):
            chosen = order[start : start + batch_size]
            x, before = inputs[chosen], inputs[chosen] @ first + first_bias
            hidden = np.maximum(before, 0)
            logits = hidden @ last + last_bias
            at_logits = np.exp(logits - logits.max(1, keepdims=True))
            at_logits /= at_logits.sum(1, keepdims=True)
            at_logits[np.arange(len(chosen)), labels[chosen]] -= 1
            at_logits /= len(chosen)
            at_hidden = (at_logits @ last.T) * (before > 0)
            gradients = (x.T @ at_hidden, at_hidden.sum(0), hidden.T @ at_logits, at_logits.sum(0))
            first, first_bias, last, last_bias = (
                array - learning_rate * gradient
                for array, gradient in zip((first, first_bias, last, last_bias), gradients, strict=True)
            )
    return [np.float32(array) for array in (first, first_bias, last, last_bias)]


def run_server(port, path):
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerConfig, start_server
    from flwr.server.strategy import FedAvg

    # The copy that the test wrote beside this file, as a federation has it.
    from recorder import record

    strategy = FedAvg(
        min_fit_clients=2,
        min_available_clients=2,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(first_weights()),
        on_fit_config_fn=lambda server_round: {"server_round": server_round, **TRAINING},
    )
    recorded = record(strategy, path, server_round=RECORDED)
    config = ServerConfig(num_rounds=NUM_ROUNDS, round_timeout=60)
    start_server(server_address=f"127.0.0.1:{port}", config=config, strategy=recorded)


def run_client(port, number):
    from flwr.client import NumPyClient, start_client

    class Client(NumPyClient):
        def fit(self, parameters, config):
            settings = {name: config[name] for name in TRAINING}
            return train(parameters, number, **settings), len(data_of(number)[1]), {"number": number}

    address = f"127.0.0.1:{port}"
    start_client(server_address=address, client=Client().to_client(), insecure=True, max_wait_time=60)


def run_messages(path):
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity
    from recorder import record

    # What Flower sets before it runs a ServerApp; without it there are no messages.
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    class GridInThisProcess(Grid):
        """Delivers messages to the two clients by a call."""

        run = None

        def set_run(self, run):
            pass

        def create_message(self, *args, **kwargs):
            raise NotImplementedError

        def get_node_ids(self):
            return [0, 1]

        def push_messages(self, messages):
            raise NotImplementedError

        def pull_messages(self, message_ids):
            raise NotImplementedError

        def send_and_receive(self, messages, *, timeout=None):
            return [self.answer(message) for message in messages]

        def answer(self, message):
            number, content = message.metadata.dst_node_id, message.content
            settings = {name: content["config"][name] for name in TRAINING}
            weights = train(content["arrays"].to_numpy_ndarrays(), number, **settings)
            metrics = MetricRecord({"num-examples": len(data_of(number)[1]), "number": number})
            records = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
            return Message(records, reply_to=message)

    strategy = record(FedAvg(fraction_evaluate=0.0), path, server_round=RECORDED)
    strategy.start(
        grid=GridInThisProcess(),
        initial_arrays=ArrayRecord(first_weights()),
        num_rounds=NUM_ROUNDS,
        train_config=ConfigRecord(dict(TRAINING)),
    )


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "server":
        run_server(int(arguments[0]), arguments[1])
    elif what == "client":
        run_client(int(arguments[0]), int(arguments[1]))
    else:
        run_messages(arguments[0])
