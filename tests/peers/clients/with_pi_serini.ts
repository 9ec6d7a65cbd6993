// Pi-Serini's own backends, over HTTP and over TCP: `with_pi_serini.ts URL RPC_PORT QUERY DOCID`.
// Run inside a copy of its repository. Prints what they give, or the error they raise, as JSON.
import { AnseriniBm25Backend } from "./src/pi-search/searcher/adapters/anserini_bm25/adapter";
import { HttpJsonSearchBackend } from "./src/pi-search/searcher/adapters/http_json/adapter";
import { Bm25TcpRpcClient } from "./src/search-providers/anserini/bm25_tcp_rpc_client";
import { parseBm25PingResponse } from "./src/search-providers/anserini/bm25_rpc_client";
import { parseBm25RpcReadyMessage } from "./src/search-providers/anserini/bm25_server_process";

const [url, rpcPort, query, docid, ready] = process.argv.slice(2);
const capabilities = {
  backendId: "soundingline",
  supportsScore: true,
  supportsSnippets: true,
  supportsExactTotalHits: false,
};
const endpoints = {
  searchUrl: `${url}/pi-serini/search`,
  readDocumentUrl: `${url}/pi-serini/read`,
};
const client = new Bm25TcpRpcClient({ host: "127.0.0.1", port: Number(rpcPort) });
const backends = {
  http: new HttpJsonSearchBackend({ kind: "http-json", capabilities, endpoints }),
  tcp: new AnseriniBm25Backend(client),
};

async function told(work: Promise<unknown>): Promise<unknown> {
  try {
    return await work;
  } catch (error) {
    return { raised: String(error) };
  }
}

const results: Record<string, unknown> = {
  ping: parseBm25PingResponse(await client.request("ping", {})),
  ready: parseBm25RpcReadyMessage(ready, "ready line"),
};
for (const [name, backend] of Object.entries(backends)) {
  results[name] = {
    search: await told(backend.search({ query, limit: 1000 })),
    nothing: await told(backend.search({ query: "xyzzy", limit: 1000 })),
    read: await told(backend.readDocument({ docid, offset: 1, limit: 1 })),
    rest: await told(backend.readDocument({ docid, offset: 2, limit: 200 })),
    empty: await told(backend.readDocument({ docid: "empty", offset: 1, limit: 200 })),
    past: await told(backend.readDocument({ docid, offset: 99, limit: 200 })),
    missing: await told(backend.readDocument({ docid: "none", offset: 1, limit: 200 })),
    blank: await told(backend.search({ query: " ", limit: 1000 })),
  };
}
console.log(JSON.stringify(results));
