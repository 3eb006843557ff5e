// The pictures: dreams side by side, reality and the difference beside them, as large as they fit.

import { $, el, paint, short } from "./dom.js";

const CAPTION = 22; // height of a caption and its gap
const GAP = 10;
const BLURRED = 0.2;
const ending = (over) => (over === null ? "" : `, over at ${over}`);
const points = (score) => short(Number(score.toFixed(2)));

export class Stage {
  #place = $("panels");
  #panels = [];
  #onFocus;

  constructor(onFocus) {
    this.#onFocus = onFocus;
    new ResizeObserver(() => this.#layout()).observe(this.#place);
  }

  /** Words instead of pictures. */
  say(text) {
    this.#panels = [];
    this.#place.style.gridTemplateColumns = "";
    this.#place.replaceChildren(el("p", { className: "waiting" }, text));
  }

  show(moment, series) {
    const { parts, rows, t, reality } = moment;
    const kinds = [...Array(rows).fill("dream"), ...(reality ? ["real", "apart"] : [])];
    if (this.#panels.map((panel) => panel.kind).join() !== kinds.join()) this.#build(kinds);
    const { shape, bytes } = parts.frames;
    const size = shape.slice(1);
    const length = size.reduce((a, b) => a * b, 1);
    for (let row = 0; row < rows; row++) {
      const panel = this.#panels[row];
      paint(panel.canvas, bytes.subarray(row * length, (row + 1) * length), size);
      panel.figure.classList.toggle("focus", row === moment.focus);
      const name = rows > 1 ? `Dream ${row + 1}` : "Dream";
      const over = moment.ended[row];
      const score = points(series.score(row, t));
      this.#caption(panel, name, over, `${series.sum} `, score);
      panel.canvas.setAttribute("aria-label", `${name} at step ${t}, ${series.sum} ${score}${ending(over)}`);
    }
    if (reality) this.#showReality(moment, series, bytes.subarray(0, length), size);
  }

  #showReality({ parts, rows, t, reality }, series, dreamt, size) {
    const [real, apart] = this.#panels.slice(rows);
    paint(real.canvas, parts.real.bytes, size);
    const score = points(series.realScore(t));
    this.#caption(real, "Reality", reality.ended, `${series.sum} `, score);
    real.canvas.setAttribute("aria-label", `Reality at step ${t}, ${series.sum} ${score}${ending(reality.ended)}`);
    paint(apart.canvas, dreamt.map((value, i) => Math.abs(value - parts.real.bytes[i])), size);
    // Where even the decoder's own picture of reality is far off, nothing can be said about the dream.
    const together = series.floor[t] > BLURRED ? ["decoder ", "blurred"] : ["still ", "together"];
    const left = reality.left === null || reality.left > t ? together : ["", `left at ${reality.left}`];
    this.#caption(apart, "Difference", null, `${short(series.difference[t] ?? 0)} · ${left[0]}`, left[1]);
    apart.canvas.setAttribute("aria-label", `Difference of dream and reality at step ${t}: ${left.join("")}`);
  }

  #build(kinds) {
    this.#panels = kinds.map((kind, row) => {
      const canvas = el("canvas", { role: "img" });
      const [name, over, extra, fact] = [el("b"), el("span", { className: "over" }), el("span", { className: "extra" }), el("span")];
      const facts = el("span", { className: "numbers" }, extra, fact);
      const figure = el("figure", { className: `panel ${kind}` }, canvas, el("figcaption", {}, name, over, facts));
      if (kind === "dream" && kinds[1] === "dream") {
        canvas.title = "Look inside this dream";
        canvas.tabIndex = 0;
        canvas.setAttribute("role", "button");
        canvas.addEventListener("click", () => this.#onFocus(row));
        canvas.addEventListener("keydown", ({ key }) => key === "Enter" && this.#onFocus(row));
      }
      return { kind, figure, canvas, name, over, extra, fact };
    });
    this.#place.replaceChildren(...this.#panels.map((panel) => panel.figure));
    this.#layout();
  }

  /** `extra` is left out below small pictures. */
  #caption(panel, name, over, extra, fact) {
    panel.name.textContent = name;
    panel.over.replaceChildren(...(over === null ? [] : ["over ", el("span", { className: "extra" }, "at "), String(over)]));
    panel.extra.textContent = extra;
    panel.fact.textContent = fact;
  }

  /** The number of columns that lets the squares be largest. */
  #layout() {
    const { clientWidth: width, clientHeight: height } = this.#place;
    const count = this.#panels.length;
    if (!count) return;
    let [best, across] = [0, 1];
    for (let columns = 1; columns <= count; columns++) {
      const lines = Math.ceil(count / columns);
      const side = Math.min((width - GAP * (columns - 1) - 6) / columns, (height - GAP * (lines - 1) - 6) / lines - CAPTION);
      if (Math.floor(side) > best) [best, across] = [Math.floor(side), columns];
    }
    this.#place.style.gridTemplateColumns = `repeat(${across}, max-content)`;
    for (const { figure, canvas } of this.#panels) {
      canvas.style.width = canvas.style.height = `${best}px`;
      figure.style.width = `${best}px`;
    }
  }
}
