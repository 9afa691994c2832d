"""Ctrl-C in the foreground."""

import gc
import signal
import time

import pytest

from workbench.progress import keep_interrupts


def test_ctrl_c_during_garbage_collection_is_not_lost():
    pressed = []

    def callback(*_):
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    keep_interrupts()
    gc.callbacks.append(callback)
    try:
        gc.collect()
        assert pressed
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    finally:
        gc.callbacks.remove(callback)
        signal.signal(signal.SIGINT, before)
