// Parts are scripts beside the page, each of which calls `soundingline(name, value)`. A value is an
// object, or in a sealed run its JSON, obfuscated.

const handedOver = new Map();
let key = null;

class Locked extends Error {}

function soundingline(name, value) {
  handedOver.set(name, value);
}

// Percent-encoded, a name can lead to no other folder and no other scheme.
const addresses = { createScriptURL: (name) => `${encodeURIComponent(name)}.js` };
const trusted = window.trustedTypes
  ? window.trustedTypes.createPolicy("data", addresses)
  : addresses;

function read(name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const end = (error) => {
      script.remove();
      const value = handedOver.get(name);
      handedOver.delete(name);
      if (error || value === undefined) reject(new Error(`${name}.js cannot be read`));
      else resolve(value);
    };
    script.onload = () => end(false);
    script.onerror = () => end(true);
    script.src = trusted.createScriptURL(name);
    document.head.append(script);
  });
}

function opened(value) {
  if (typeof value !== "string") return value;
  if (!key) throw new Locked();
  return JSON.parse(unsealed(value, key));
}

async function part(name) {
  return opened(await read(name));
}

// Elements are made here alone. Text becomes text: nothing in this page parses HTML.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  const present = children.flat(Infinity).filter((child) => child !== null && child !== undefined);
  element.append(...present.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

const byId = (id) => document.getElementById(id);
const count = (number, noun) => `${amount(number)} ${noun}${number === 1 ? "" : "s"}`;
const amount = (number) => Number(number).toLocaleString("en-US");
const dollars = (number) => `$${number.toFixed(number < 1 ? 4 : 2)}`;
const share = (number) => (number === null ? "—" : number.toFixed(2));
