"use strict";

// The scheme of toolkit/sealing.py: a text in UTF-8, XOR the SHA-256 of the canary, in base64.

async function sealKey(canary) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(canary));
  return new Uint8Array(digest);
}

// Throws where the key is another one: what comes out is no UTF-8, or is no JSON later on.
function unsealed(text, key) {
  const mixed = atob(text);
  const bytes = new Uint8Array(mixed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = mixed.charCodeAt(i) ^ key[i % key.length];
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}
