"""A function in a process that is forked from that of the test, so that it can be killed."""

import multiprocessing

_FORK = multiprocessing.get_context("fork")


def forked(work, *arguments):
    """The process that calls `work(ready, *arguments)`, once it has called `ready`. It has imported
    what the test has, which a new interpreter would do for a second."""
    ready = _FORK.Event()
    process = _FORK.Process(target=work, args=(ready.set, *arguments), daemon=True)
    process.start()
    assert ready.wait(60), "the process did not get ready"
    return process
