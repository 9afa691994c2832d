"""Local training, run by the client and simulated by the attacker: layers, chains of them, SGD, and the same in C++."""
