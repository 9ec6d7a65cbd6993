"""BrowseComp-Plus's in-process clients on `soundingline serve`: copy this file over
`searcher/searchers/custom_searcher.py` and give them `--searcher-type custom --url ADDRESS`."""

import json
from urllib.request import Request, urlopen

from .base import BaseSearcher


class CustomSearcher(BaseSearcher):
    search_type = "soundingline"

    @classmethod
    def parse_args(cls, parser):
        parser.add_argument("--url", default="http://127.0.0.1:8000")

    def __init__(self, args):
        self.url = args.url

    def post(self, path, **body):
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        request = Request(f"{self.url}/browsecomp-plus/{path}", data, headers)
        with urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def search(self, query, k=10):
        return self.post("search", query=query, k=k)

    def get_document(self, docid):
        return self.post("get_document", docid=docid)
