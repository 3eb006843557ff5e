// Where dreams begin: pictures of the replay to choose from, or a fresh real episode.

import { $, askPacket, el, paint, short, whole } from "./dom.js";
import { random } from "./controls.js";

export class FilmStrip {
  #wire;
  #run = 0;
  #length = 0;
  #asked = 0; // the newest request: older answers come too late
  #chosen = null;
  #timer = 0;

  constructor(wire) {
    this.#wire = wire;
    $("strip-at").addEventListener("input", () => this.#soon());
    $("strip-stride").addEventListener("change", () => this.#load());
    $("real").addEventListener("click", () => this.#real(true));
    new ResizeObserver(() => this.#soon()).observe($("thumbs"));
    $("thumbs").addEventListener("keydown", (event) => this.#move(event));
  }

  /** Show the replay of a run; begins a dream somewhere in its middle. */
  introduce(run, { replay, env }, begin) {
    this.#run = run;
    this.#length = replay;
    $("strip-at").max = Math.max(0, replay - 1);
    $("strip-at").disabled = !replay;
    if (replay) {
      const index = Math.floor(replay / 2);
      if (this.#chosen >= replay) this.#chosen = null; // of another run
      if (this.#chosen === null) $("strip-at").value = index;
      this.#load();
      if (begin) this.start(this.#chosen ?? index);
    } else {
      $("thumbs").replaceChildren(el("p", { className: "empty" }, `This run keeps no replay: begin with a fresh episode of ${env}.`));
      if (begin) this.#real(false);
    }
  }

  /** A running training has gathered more. */
  grow(length) {
    this.#length = length;
    $("strip-at").max = Math.max(0, length - 1);
    this.#load();
  }

  start(index) {
    this.#chosen = index;
    this.#mark();
    const rows = Number($("rows").querySelector("input:checked").value);
    this.#wire.send("start", { start: { kind: "replay", index }, rows, seed: random() });
  }

  show({ start }) {
    this.#chosen = start.kind === "replay" ? start.index : null;
    this.#mark();
  }

  #real(beside) {
    const value = (id) => Math.min(Number($(id).max), Math.max(0, Math.floor(Number($(id).value) || 0)));
    const start = { kind: "real", seed: value("real-seed"), steps: value("real-steps"), by: "policy", beside };
    this.#wire.send("start", { start, rows: Number($("rows").querySelector("input:checked").value), seed: random() });
  }

  #soon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#load(), 120);
  }

  async #load() {
    if (!this.#length || !$("thumbs").clientWidth) return;
    const asked = ++this.#asked;
    const stride = Number($("strip-stride").value);
    const count = Math.min(60, Math.max(6, Math.ceil($("thumbs").clientWidth / 68) + 4));
    const at = Number($("strip-at").value);
    const first = Math.max(0, Math.min(at - stride * Math.floor(count / 3), this.#length - stride * count));
    $("strip-where").textContent = `step ${whole(at)} of ${whole(this.#length)}`;
    const query = new URLSearchParams({ first, stride, count });
    const packet = await askPacket(`/api/runs/${this.#run}/strip?${query}`).catch(() => null);
    if (packet && asked === this.#asked) this.#draw(packet, at);
  }

  #draw({ header, parts }, at) {
    if (!header.indices.length) return;
    const size = parts.frames.shape.slice(1);
    const length = size.reduce((a, b) => a * b, 1);
    const thumbs = header.indices.map((index, i) => {
      const canvas = el("canvas", { ariaHidden: "true" });
      paint(canvas, parts.frames.bytes.subarray(i * length, (i + 1) * length), size);
      const reward = header.rewards[i];
      const begins = header.since[i] < (header.indices[1] ?? 1) - header.indices[0];
      const label = `Start from step ${whole(index)}: episode ${header.episodes[i]}, its step ${header.since[i]}`;
      const gained = reward ? el("b", { className: reward > 0 ? "plus" : "minus" }, ` ${reward > 0 ? "+" : ""}${short(reward)}`) : "";
      const thumb = el("button", { className: `thumb${begins ? " begins" : ""}`, title: label, tabIndex: -1 }, canvas, el("span", {}, whole(index), gained));
      thumb.setAttribute("role", "option");
      thumb.setAttribute("aria-label", reward ? `${label}, reward ${short(reward)}` : label);
      thumb.dataset.index = index;
      thumb.addEventListener("click", () => this.start(index));
      return thumb;
    });
    $("thumbs").replaceChildren(...thumbs);
    const nearest = thumbs.reduce((a, b) => (Math.abs(b.dataset.index - at) < Math.abs(a.dataset.index - at) ? b : a));
    nearest.tabIndex = 0;
    $("thumbs").scrollLeft = nearest.offsetLeft - $("thumbs").offsetLeft - $("thumbs").clientWidth / 2;
    this.#mark();
  }

  #mark() {
    for (const thumb of $("thumbs").querySelectorAll(".thumb")) {
      thumb.setAttribute("aria-selected", String(Number(thumb.dataset.index) === this.#chosen));
    }
  }

  #move(event) {
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    const next = step && event.target.closest(".thumb")?.[step];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    event.target.closest(".thumb").tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}
