"""Ctrl-C: none is lost, and none comes after what it has ended."""

import gc
import signal
import threading
import time

import pytest

from workbench.progress import repeated_interrupts


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_is_raised_again():
    def collecting(phase, info):
        if phase == "start":
            signal.raise_signal(signal.SIGINT)

    def interrupted_while_collecting():
        gc.callbacks.append(collecting)
        gc.collect()
        gc.callbacks.remove(collecting)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), repeated_interrupts(after=0.2):
        interrupted_while_collecting()


def test_an_interrupt_that_has_ended_what_ran_is_not_raised_again():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), repeated_interrupts(after=0.05):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before, "the handler of before is not there again"
    time.sleep(0.2)
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
