// Films of the run: its newest real episodes, and film files in its directory.

import { $, ask, askPacket, el, paint, short, whole } from "./dom.js";

const FPS = 15;

export class Films {
  #canvas = $("film-canvas");
  #timer = 0;
  #asked = 0;
  #known = "";

  async show(run, facts) {
    const episodes = await ask(`/api/runs/${run}/episodes`).catch(() => []);
    const known = JSON.stringify([run, episodes, facts.films]);
    if (known === this.#known) return;
    this.#known = known;
    const items = [
      ...facts.films.map((film, i) => this.#item(film.name, "film in the run directory", () => this.#play(`/api/runs/${run}/films/${i}`))),
      ...episodes.map(({ first, steps, score }) => {
        const query = new URLSearchParams({ first, stride: 1, count: Math.min(300, steps) });
        return this.#item(`Step ${whole(first)}`, `${whole(steps)} steps, score ${short(score)}`, () => this.#play(`/api/runs/${run}/strip?${query}`));
      }),
    ];
    $("film-list").replaceChildren(...(items.length ? items : [el("li", { className: "empty" }, "No replay and no films yet.")]));
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) $("film-list").querySelector("button")?.click();
  }

  #item(name, note, play) {
    const button = el("button", { ariaPressed: "false" }, `▶ ${name} · ${note}`);
    button.addEventListener("click", () => {
      for (const other of $("film-list").querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      this.#canvas.setAttribute("aria-label", `Film: ${name}, ${note}`);
      play();
    });
    return el("li", {}, button);
  }

  async #play(address) {
    const asked = ++this.#asked;
    const packet = await askPacket(address).catch(() => null);
    if (!packet?.parts.frames || asked !== this.#asked) return;
    const { shape, bytes } = packet.parts.frames;
    const size = shape.slice(1);
    const length = size.reduce((a, b) => a * b, 1);
    let i = 0;
    clearInterval(this.#timer);
    const next = () => {
      if ($("page-training").hidden) return;
      paint(this.#canvas, bytes.subarray(i * length, (i + 1) * length), size);
      i = (i + 1) % shape[0];
    };
    next();
    this.#timer = setInterval(next, 1000 / FPS);
  }
}
