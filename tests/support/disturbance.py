"""Disturbs a command from inside its own process, at a moment that can be repeated.

Moments are counted in the files that the command opens for writing or renames below its working
folder. `SOUNDINGLINE_TEST_DISTURB=kind:moment` names a signal (`SIGKILL`), `full` (every write from
then on fails for want of room), `stop` (the process stops until it is continued) or `count` (the
number of moments is written to the file `moments` at the end).
"""

import atexit
import errno
import os
import signal
import sys
import threading
from pathlib import Path

EXEMPT = ("moments", "stopped", "asked")  # the files of this module, and the log of the model


def install(kind, moment):
    """Disturb this process from here on."""
    folder = str(Path.cwd()) + os.sep
    count, lock, moment = 0, threading.RLock(), int(moment)

    def hook(event, arguments):
        nonlocal count
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event == "os.rename":
            path = arguments[1]
        else:
            return
        if not isinstance(path, (str, os.PathLike)):
            return
        place = Path(folder, path)
        if not str(place).startswith(folder) or place.name in EXEMPT[:2]:
            return
        with lock:
            count += 1
            here = count
        if kind == "full" and here >= moment and place.name not in EXEMPT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
        if here == moment and kind == "stop":
            Path(folder, "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif here == moment and kind.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[kind])

    if kind == "count":
        atexit.register(lambda: Path(folder, "moments").write_text(str(count)))
    sys.addaudithook(hook)
