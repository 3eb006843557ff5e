// Films to keep, and links that reproduce a dream. A link carries its dream behind the #, which no server sees.

import { $ } from "./dom.js";

async function through(stream, bytes) {
  const response = new Response(new Blob([bytes]).stream().pipeThrough(stream));
  return new Uint8Array(await response.arrayBuffer());
}

/** A recipe as text for an address: compressed JSON in URL-safe base 64. */
export async function encode(recipe) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(JSON.stringify(recipe)));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export async function decode(text) {
  const raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = await through(new DecompressionStream("deflate-raw"), Uint8Array.from(raw, (c) => c.charCodeAt(0)));
  return JSON.parse(new TextDecoder().decode(bytes));
}

/** The run's name and the dream in the address of this page, if there are. */
export function linked() {
  const fields = new URLSearchParams(location.hash.slice(1));
  return { run: fields.get("run"), dream: fields.get("dream") };
}

export class Share {
  #session = "";
  #moment = null;
  #run = "";

  constructor(wire) {
    $("link-open").addEventListener("click", () => this.#moment && wire.send("recipe"));
    wire.on("recipe", ({ recipe }) => this.#showLink(recipe));
    $("link-copy").addEventListener("click", () => this.#copy());
    $("film-open").addEventListener("click", () => this.#showFilm());
    $("film-dialog").addEventListener("input", () => this.#address());
    $("film-save").addEventListener("click", () => $("film-dialog").close());
  }

  introduce({ session, run }) {
    [this.#session, this.#run, this.#moment] = [session, run, null];
  }

  show(moment) {
    this.#moment = moment;
  }

  async #showLink(recipe) {
    const address = new URL(location.href);
    address.hash = new URLSearchParams({ run: this.#run, dream: await encode(recipe) });
    $("link-text").value = address.href;
    $("link-copy").textContent = "Copy";
    $("link-dialog").showModal();
    $("link-text").select();
  }

  async #copy() {
    $("link-text").select();
    // Without a secure connection browsers offer no clipboard; the text is selected, so Ctrl-C works.
    const copied = await navigator.clipboard?.writeText($("link-text").value).then(() => true, () => false);
    $("link-copy").textContent = copied ? "Copied" : "Press Ctrl-C";
  }

  #showFilm() {
    if (!this.#moment) return;
    $("film-first").max = $("film-last").max = $("film-last").value = this.#moment.length;
    $("film-first").value = 0;
    this.#address();
    $("film-dialog").showModal();
  }

  #address() {
    const kind = document.querySelector("input[name=film-kind]:checked").value;
    const query = new URLSearchParams({ first: $("film-first").value, last: $("film-last").value });
    $("film-save").href = `/api/dreams/${encodeURIComponent(this.#session)}/film.${kind}?${query}`;
    $("film-save").download = `dream.${kind}`;
  }
}
