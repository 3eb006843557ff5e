// The latent state as a grid: a column for each variable, a row for each category. A click sets a category.

import { $, colour, lazily, redrawn } from "./dom.js";
import { rgb } from "./inside.js";

export class Latents {
  #canvas = $("latents");
  #draw = lazily(() => this.#paint());
  #moment = null;
  #size = [1, 1];
  #at = [0, 0]; // the cell that the keyboard is on
  #looked = null; // the cell that is being read out
  #onEdit;

  constructor(onEdit) {
    this.#onEdit = onEdit;
    redrawn(this.#canvas, this.#draw);
    this.#canvas.addEventListener("click", (event) => {
      this.#at = this.#cell(event);
      this.#read(this.#at);
      this.#edit();
    });
    this.#canvas.addEventListener("mousemove", (event) => this.#read(this.#cell(event)));
    this.#canvas.addEventListener("focus", () => (this.#read(this.#at), this.#draw()));
    this.#canvas.addEventListener("blur", this.#draw);
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  build([variables, categories]) {
    this.#size = [variables, categories];
    this.#at = [0, 0];
    this.#moment = this.#looked = null;
    this.#canvas.style.width = `min(100cqw, calc(100cqh * ${variables / categories}))`;
    this.#canvas.style.aspectRatio = `${variables} / ${categories}`;
    $("latents-size").textContent = `${variables} variables × ${categories} categories`;
  }

  show(moment) {
    this.#moment = moment;
    this.#draw();
    if (this.#looked) this.#read(this.#looked);
    this.#canvas.setAttribute("aria-label", `Latent state at step ${moment.t}: categories ${moment.latents.join(" ")}`);
  }

  #cell(event) {
    const box = this.#canvas.getBoundingClientRect();
    const at = (offset, side, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / side) * count)));
    return [at(event.clientX - box.left, box.width, this.#size[0]), at(event.clientY - box.top, box.height, this.#size[1])];
  }

  #key(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move) this.#at = this.#at.map((value, i) => (value + move[i] + this.#size[i]) % this.#size[i]);
    else if (event.key === "Enter" || event.key === " ") this.#edit();
    else return;
    event.preventDefault();
    event.stopPropagation(); // not for the game
    this.#read(this.#at);
    this.#draw();
  }

  #edit() {
    const [variable, category] = this.#at;
    if (this.#moment) this.#onEdit(variable, category);
  }

  #read([variable, category]) {
    if (!this.#moment) return;
    this.#looked = [variable, category];
    const expected = this.#moment.parts.expected.bytes[variable * this.#size[1] + category] / 255;
    const set = this.#moment.latents[variable] === category ? ", set" : "";
    $("latents-read").textContent = `variable ${variable + 1}, category ${category + 1}: expected ${Math.round(100 * expected)} %${set}`;
  }

  #paint() {
    if (!this.#moment) return;
    const [variables, categories] = this.#size;
    const cell = 9; // drawn small, enlarged by the browser without blur
    const canvas = this.#canvas;
    [canvas.width, canvas.height] = [variables * cell, categories * cell];
    const c = canvas.getContext("2d");
    const [from, to, set] = [rgb(colour("heat-0")), rgb(colour("heat-1")), colour("series-3")];
    const { latents, parts } = this.#moment;
    for (let v = 0; v < variables; v++) {
      for (let k = 0; k < categories; k++) {
        const share = Math.sqrt(parts.expected.bytes[v * categories + k] / 255);
        c.fillStyle = `rgb(${from.map((a, i) => Math.round(a + (to[i] - a) * share)).join()})`;
        c.fillRect(v * cell, k * cell, cell - 1, cell - 1);
      }
      c.strokeStyle = set;
      c.lineWidth = 2;
      c.strokeRect(v * cell + 1, latents[v] * cell + 1, cell - 3, cell - 3);
    }
    if (document.activeElement === canvas) {
      c.strokeStyle = colour("text");
      c.lineWidth = 1;
      c.strokeRect(this.#at[0] * cell - 0.5, this.#at[1] * cell - 0.5, cell, cell);
    }
  }
}
