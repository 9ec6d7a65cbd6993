"""`soundingline serve`: sessions over one pipeline for clients of HTTP, MCP, BrowseComp-Plus and
Pi-Serini."""

from soundingline.experiments.serve.server import start as start
