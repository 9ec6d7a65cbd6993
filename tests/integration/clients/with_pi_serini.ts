// Pi-Serini's own backend over HTTP: `with_pi_serini.ts URL QUERY DOCID`. Run inside a copy of its
// repository. Prints what it returns, or the error that it raises, as JSON.
import { HttpJsonSearchBackend } from "./src/pi-search/searcher/adapters/http_json/adapter";

const [url, query, docid] = process.argv.slice(2);
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
const backend = new HttpJsonSearchBackend({ kind: "http-json", capabilities, endpoints });

async function told(work: Promise<unknown>): Promise<unknown> {
  try {
    return await work;
  } catch (error) {
    return { raised: String(error) };
  }
}

const results = {
  search: await told(backend.search({ query, limit: 1000 })),
  nothing: await told(backend.search({ query: "xyzzy", limit: 1000 })),
  read: await told(backend.readDocument({ docid, offset: 1, limit: 1 })),
  rest: await told(backend.readDocument({ docid, offset: 2, limit: 200 })),
  empty: await told(backend.readDocument({ docid: "empty", offset: 1, limit: 200 })),
  past: await told(backend.readDocument({ docid, offset: 99, limit: 200 })),
  missing: await told(backend.readDocument({ docid: "none", offset: 1, limit: 200 })),
  blank: await told(backend.search({ query: " ", limit: 1000 })),
};
console.log(JSON.stringify(results));
