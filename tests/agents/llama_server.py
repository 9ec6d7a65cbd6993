"""llama.cpp's own server, embedded by xllamacpp, on a port: `python llama_server.py MODEL PORT`."""

from __future__ import annotations

import sys
import threading

import xllamacpp


def main(model: str, port: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = ["tiny"]
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = 65_536
    params.n_parallel = 4
    params.use_jinja = True
    params.warmup = False
    # Several threads wait for each other by spinning, which a busy machine punishes.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stderr.write(f"listening on {server.listening_address}\n")
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
