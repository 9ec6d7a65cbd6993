"""`soundingline serve`: sessions over one pipeline for clients of HTTP, MCP, BrowseComp-Plus and
Pi-Serini."""
