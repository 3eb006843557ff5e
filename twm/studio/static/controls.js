// Buttons and sliders around the dream.

import { $, el, whole } from "./dom.js";
import { Keys } from "./keys.js";

const random = () => Math.floor(Math.random() * 2 ** 31);
const HELP = [
  ["arrows, W A S D, space", "the game's keys, as far as it has them"],
  ["P", "play or pause"], [".", "one step"], [",", "one step back"], ["R", "reset: the same start again"],
  ["N", "another future from this step on"], ["M", "who acts: you, policy, both"], ["?", "this help"],
];

export class Controls {
  #wire;
  #moment = null;
  #seeking = false;
  #mode = "both";

  constructor(wire) {
    this.#wire = wire;
    const send = (type, fields) => () => this.#moment && wire.send(type, fields?.());
    const actions = {
      playpause: () => this.#toggle(),
      stepon: send("step"),
      stepback: () => this.#moment?.t > 0 && wire.send("seek", { t: this.#moment.t - 1 }),
      again: send("again"),
      reseed: send("reseed", () => ({ seed: random() })),
    };
    for (const [id, action] of Object.entries(actions)) $(id).addEventListener("click", action);
    const shortcuts = { p: actions.playpause, ".": actions.stepon, ",": actions.stepback, r: actions.again, n: actions.reseed };
    shortcuts.m = () => this.#choose({ you: "policy", policy: "both", both: "you" }[this.#mode]);
    shortcuts["?"] = () => $("help").click();
    this.keys = new Keys((action, pressed) => this.#act(action, pressed), shortcuts);
    $("mode").addEventListener("change", ({ target }) => this.#choose(target.value));
    $("rows").addEventListener("change", ({ target }) => wire.send("branch", { rows: Number(target.value), seed: random() }));
    this.#sliders();
    this.#help();
    // After a click the keys belong to the game again; whoever came by keyboard keeps the focus.
    $("page-dream").addEventListener("click", ({ detail, target }) => {
      const control = target.closest(".stage, .strip-controls") && !target.closest("select, input[type=number], #panels");
      if (detail > 0 && control && !document.querySelector("dialog[open]")) $("panels").focus({ preventScroll: true });
    });
    document.addEventListener("visibilitychange", () => document.hidden && this.#moment?.playing && wire.send("pause"));
  }

  /** After a connection: tell the studio what the page has set. */
  introduce({ actions, keys }) {
    this.keys.build(actions, keys);
    this.#moment = null;
    this.#wire.send("control", { mode: this.#mode });
    for (const id of ["fps", "temperature", "policy-temperature"]) $(id).dispatchEvent(new Event("input"));
  }

  show(moment) {
    this.#moment = moment;
    $("timeline").max = moment.length;
    if (!this.#seeking) $("timeline").value = moment.t;
    $("where").textContent = `${whole(moment.t)} / ${whole(moment.length)}`;
    this.#playing(moment.playing);
    $("stepback").disabled = moment.t === 0;
    $("stepon").disabled = $("playpause").disabled = moment.t >= moment.max_steps;
    const rows = $("rows").querySelector(`input[value="${moment.rows}"]`);
    if (rows) rows.checked = true;
    $("real").classList.toggle("on", Boolean(moment.reality));
    $("real").textContent = moment.reality ? "Compare anew" : "Compare with reality";
  }

  paused() {
    if (this.#moment) this.#moment.playing = false;
    this.#playing(false);
  }

  #playing(on) {
    const button = $("playpause");
    button.querySelector("use").setAttribute("href", on ? "#pause" : "#play");
    button.querySelector("span").textContent = on ? "Pause" : "Play";
    button.setAttribute("aria-label", on ? "Pause" : "Play");
  }

  #toggle() {
    if (!this.#moment) return;
    this.#moment.playing = !this.#moment.playing;
    this.#wire.send(this.#moment.playing ? "play" : "pause");
    this.#playing(this.#moment.playing);
  }

  #act(action, pressed) {
    this.#wire.send("act", { action });
    if (pressed && this.#moment && !this.#moment.playing && this.#mode !== "policy") this.#wire.send("step");
  }

  #choose(mode) {
    this.#mode = mode;
    $("mode").querySelector(`input[value=${mode}]`).checked = true;
    this.#wire.send("control", { mode });
  }

  #sliders() {
    const slider = (id, text, send) => {
      $(id).addEventListener("input", ({ target }) => {
        target.parentElement.querySelector("output").textContent = text(Number(target.value));
        send(Number(target.value));
      });
    };
    slider("fps", (x) => `${x} fps`, (fps) => this.#wire.send("speed", { fps }));
    slider("temperature", (x) => x.toFixed(2), (latents) => this.#wire.send("temperature", { latents }));
    slider("policy-temperature", (x) => x.toFixed(2), (policy) => this.#wire.send("temperature", { policy }));
    // While the mouse drags, packets of the steps passed by must not pull the slider back.
    const timeline = $("timeline");
    timeline.addEventListener("input", () => {
      this.#seeking = true;
      this.#wire.send("seek", { t: Number(timeline.value) });
    });
    timeline.addEventListener("change", () => (this.#seeking = false));
  }

  #help() {
    const rows = HELP.flatMap(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)]);
    $("help-keys").replaceChildren(...rows);
    $("help").addEventListener("click", () => $("help-dialog").showModal());
  }
}

export { random };
