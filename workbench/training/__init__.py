"""Local training, run by the client and simulated by the attacker: layers, networks, SGD, and the same in C++."""
