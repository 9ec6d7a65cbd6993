"""A stand-in for a model server: `fake_server.py --port N [--how HOW]`.

HOW: `serve` answers /health after a moment, and says so when it is asked to end; `stubborn` ignores
SIGTERM; `crash` ends with a message before it is healthy; `silent` never becomes healthy. All but
`crash` start a child process and write both process ids to the file named by the environment
variable PIDS.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Health(BaseHTTPRequestHandler):
    began = time.monotonic()

    def do_GET(self):
        ready = time.monotonic() - self.began > 0.1
        self.send_response(200 if ready and self.path == "/health" else 503)
        self.end_headers()


def farewell(number, frame):
    sys.stdout.write("ended as asked\n")
    sys.stdout.flush()
    sys.exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--how", default="serve")
    options = parser.parse_args()
    sys.stdout.write("loading weights\n")
    sys.stdout.flush()
    if options.how == "crash":
        sys.exit("out of memory")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.how == "stubborn" else farewell)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    partial = Path(os.environ["PIDS"] + ".partial")
    partial.write_text(f"{os.getpid()} {child.pid}")
    partial.rename(os.environ["PIDS"])
    if options.how == "silent":
        time.sleep(60)
    HTTPServer(("127.0.0.1", options.port), Health).serve_forever()


main()
