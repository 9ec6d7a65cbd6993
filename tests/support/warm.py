"""The server behind `commands`: it forks a process for each request, and disturbs that process
where the environment of the request says so.

Before the first one it imports the commands and runs a sweep with its report, so that a command
finds parsers, compiled functions and compositions in memory.

A disturbance comes from inside the process, at a moment that can be repeated. Moments are counted
in the files that the command opens for writing or renames below its working folder.
`SOUNDINGLINE_TEST_DISTURB=kind:moment` names a signal (`SIGKILL`), `full` (every write from then on
fails for want of room), `stop` (the process stops until it is continued) or `count` (the number of
moments is written to the file `moments` at the end).
"""

import atexit
import contextlib
import errno
import gc
import io
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from pathlib import Path

SWEEP = (
    *("-m", "name=warm", "unit=document,passage", "benchmark=fictional"),
    *("benchmark.documents=64", "benchmark.questions=6", "benchmark.hops=1"),
)
_STANDARD_INPUT = 0


def serve(descriptor):
    """Answer each request on this socket with the number of its process, and with the exit code
    when that has ended. The server ends when its standard input does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=descriptor)
    ready, _, _ = select.select([_STANDARD_INPUT, listener], [], [])
    if _STANDARD_INPUT in ready:
        return
    _warm_up()
    wakes, woken = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients = {}
    while True:
        ready, _, _ = select.select([_STANDARD_INPUT, listener, woken], [], [])
        if _STANDARD_INPUT in ready:
            return
        if woken in ready:
            woken.recv(1024)
            _send_exit_codes(clients)
        if listener in ready:
            client = Connection(listener.accept()[0].detach())
            request = client.recv()
            pid = os.fork()
            if pid == 0:
                for inherited in (listener, wakes, woken, *clients.values()):
                    inherited.close()
                _become(request, client)
            clients[pid] = client


def _warm_up():
    gc.disable()
    import httpx2  # noqa: F401
    import scipy.stats  # noqa: F401
    from support import sharing
    from support.commands import run_entry
    from tqdm import tqdm

    import soundingline.experiments.enrich
    import soundingline.experiments.evaluate
    import soundingline.experiments.run
    import soundingline.experiments.serve  # noqa: F401

    tqdm.monitor_interval = 0  # its thread would not survive a fork
    sharing.install_compositions()
    sharing.install_figures()
    sharing.install_kernels()
    before = Path.cwd()
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = run_entry("rank", *SWEEP)
        os.chdir(before)
    assert code == 0, output.getvalue()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 10, 10)  # as in the workers


def _send_exit_codes(clients):
    """Of all processes that have ended; one signal may tell of several."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with clients.pop(pid) as client, contextlib.suppress(BrokenPipeError):
            client.send(os.waitstatus_to_exitcode(status))


def _become(request, client):
    """In the child: become what the console script, or `python -c`, would have started."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with client:
            client.send(os.getpid())
        for descriptor, name in enumerate(("in", "out", "err")):
            flags = os.O_WRONLY | os.O_APPEND if descriptor else os.O_RDONLY
            os.dup2(os.open(Path(request.files) / name, flags), descriptor)
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.variables)
        sys.path[:0] = request.variables.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = [request.command, *request.arguments]
        if "SOUNDINGLINE_TEST_DISTURB" in os.environ:
            _disturb(*os.environ["SOUNDINGLINE_TEST_DISTURB"].split(":"))
        if request.command == "-c":
            program, *sys.argv[1:] = request.arguments
            exec(program, {"__name__": "__main__"})
        else:
            from soundingline.experiments.cli import main

            main([request.command, *request.arguments])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # As the interpreter ends.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_EXEMPT = ("moments", "stopped", "asked")  # the files of this module, and the log of the model


def _disturb(kind, moment):
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
        if not str(place).startswith(folder) or place.name in _EXEMPT[:2]:
            return
        with lock:
            count += 1
            here = count
        if kind == "full" and here >= moment and place.name not in _EXEMPT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
        if here == moment and kind == "stop":
            Path(folder, "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif here == moment and kind.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[kind])

    if kind == "count":
        atexit.register(lambda: Path(folder, "moments").write_text(str(count)))
    sys.addaudithook(hook)
