"""llama.cpp's own server from the package xllamacpp, for machines without `llama-server`.

Started as a script, with those options of `llama-server` that `LlamaCppServer` writes.
Imports nothing of ours.
"""

from __future__ import annotations

import argparse
import os
import threading


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gpu-layers", type=int)
    parser.add_argument("--chat-template-file")
    options = parser.parse_args()

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = [options.alias]
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx, params.n_parallel = options.ctx_size, options.parallel
    params.use_jinja, params.warmup, params.ui = True, False, False
    if options.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if options.gpu_layers is not None:
        params.n_gpu_layers = options.gpu_layers
    if options.chat_template_file:
        with open(options.chat_template_file, encoding="utf-8") as stream:  # noqa: PTH123
            params.chat_template = stream.read()
    if key := os.environ.get("LLAMA_API_KEY"):
        params.api_keys = [key]
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        # llama.cpp has written what is wrong.
        raise SystemExit(str(error)) from None
    assert server.listening_address
    threading.Event().wait()


if __name__ == "__main__":
    main()
