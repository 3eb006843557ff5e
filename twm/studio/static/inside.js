// Inside the model: predictions as they go, the policy, the attention.

import { $, colour, el, fit, lazily, redrawn } from "./dom.js";
import { lines } from "./plot.js";

const PLOTS = [
  { name: "r", label: "reward", include: [-0.1, 0.1] },
  { name: "gamma", label: "discount", include: [0.9, 1] },
  { name: "value", label: "value", include: [] },
];

export class Predictions {
  #canvases = [];
  #draw;
  #state = null;

  constructor() {
    for (const { label } of [...PLOTS, { label: "difference from reality" }]) {
      const canvas = el("canvas", { role: "img", ariaLabel: `Plot of the ${label}` });
      this.#canvases.push(canvas);
    }
    $("predictions").append(...this.#canvases);
    this.#canvases[3].hidden = true;
    this.#draw = lazily(() => this.#paint());
    redrawn($("predictions"), this.#draw);
  }

  show(moment, series) {
    this.#state = { moment, series };
    this.#canvases[3].hidden = !moment.reality;
    this.#draw();
  }

  #paint() {
    if (!this.#state || !$("predictions").clientHeight) return;
    const { moment, series } = this.#state;
    const x = [0, Math.max(30, series.length - 1)];
    PLOTS.forEach(({ name, label, include }, i) => {
      const all = [...Array(moment.rows).keys()].map((row) => ({
        points: series.points(name, row),
        colour: colour("dream"),
        alpha: row === moment.focus ? 1 : 0.35,
        width: row === moment.focus ? 1.75 : 1,
      }));
      if (name === "r" && moment.reality) {
        all.unshift({ points: series.realRewards.map((r, t) => [t, r]).slice(1), colour: colour("reality"), width: 1.5 });
      }
      const now = moment.t || name === "value" ? series[name][moment.t]?.[moment.focus].toFixed(3) : "";
      lines(this.#canvases[i], all, { title: label, note: now, cursor: moment.t, include, x });
      this.#canvases[i].setAttribute("aria-label", `Predicted ${label}, step ${moment.t}: ${now || "none yet"}`);
    });
    if (moment.reality) {
      const apart = [
        { points: series.floor.map((d, t) => [t, d]), colour: colour("muted"), width: 1, dash: [2, 2] },
        { points: series.difference.map((d, t) => [t, d]), colour: colour("apart") },
      ];
      const note = `${series.difference[moment.t]?.toFixed(3)}, at best ${series.floor[moment.t]?.toFixed(3)}`;
      lines(this.#canvases[3], apart, { title: "difference", note, cursor: moment.t, include: [0], x });
      this.#canvases[3].setAttribute("aria-label", `Difference from reality at step ${moment.t}: ${note}`);
    }
  }
}

export class Policy {
  #items = [];

  build(actions) {
    this.#items = actions.map((name) => {
      const [bar, share] = [el("i"), el("span", { className: "share" })];
      const track = el("span", { className: "track" }, bar);
      return { item: el("li", {}, el("span", { className: "name", title: name }, name), track, share), bar, share };
    });
    $("policy").replaceChildren(...this.#items.map(({ item }) => item));
  }

  show(moment, series) {
    const taken = moment.t ? series.a[moment.t]?.[moment.focus] : null;
    moment.policy[moment.focus].forEach((p, i) => {
      const { item, bar, share } = this.#items[i];
      bar.style.transform = `scaleX(${p})`;
      share.textContent = `${Math.round(100 * p)} %`;
      item.classList.toggle("taken", i === taken);
    });
  }
}

export class Attention {
  #canvas = $("attention");
  #draw;
  #shape = null;
  #map = null;

  constructor() {
    this.#draw = lazily(() => this.#paint());
    redrawn(this.#canvas, this.#draw);
  }

  build(shape) {
    this.#shape = shape;
  }

  show(moment) {
    this.#map = moment.parts.attention;
    const [layers, modalities, steps] = this.#map.shape;
    const sums = this.#shape.modalities.map((_, m) => {
      let sum = 0;
      for (let l = 0; l < layers; l++) for (let t = 0; t < steps; t++) sum += this.#map.bytes[(l * modalities + m) * steps + t];
      return sum / layers / 255;
    });
    const shares = this.#shape.modalities.map((name, m) => `${name} ${Math.round(100 * sums[m])} %`);
    const text = moment.t === 0 ? "Nothing yet: the first step shows where it looks." : modalities > 1 ? shares.join(" · ") : `${layers} layers × ${steps} steps`;
    $("attention-read").textContent = text;
    this.#canvas.setAttribute("aria-label", `Attention of ${layers} layers at step ${moment.t}: ${text}`);
    this.#draw();
  }

  /** Blocks for states, actions and rewards; in each, layers from the first (top) to the last, time to the right. */
  #paint() {
    if (!this.#map) return;
    const { context: c, width, height } = fit(this.#canvas);
    const { bytes, shape } = this.#map;
    const [layers, modalities, steps] = shape;
    const [left, bottom, gap] = [22, 16, 8];
    const [from, to] = [rgb(colour("heat-0")), rgb(colour("heat-1"))];
    const block = (width - left - gap * (modalities - 1)) / modalities;
    const top = modalities > 1 ? 16 : 2;
    const [w, h] = [block / steps, (height - top - bottom) / layers];
    c.font = '11px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif';
    c.textBaseline = "middle";
    for (let l = 0; l < layers; l++) {
      const most = Math.max(1, ...bytes.subarray(l * modalities * steps, (l + 1) * modalities * steps));
      for (let m = 0; m < modalities; m++) {
        for (let t = 0; t < steps; t++) {
          const share = Math.sqrt(bytes[(l * modalities + m) * steps + t] / most);
          c.fillStyle = `rgb(${from.map((a, i) => Math.round(a + (to[i] - a) * share)).join()})`;
          c.fillRect(left + m * (block + gap) + t * w, top + l * h, Math.max(1, w - 1), Math.max(1, h - 1));
        }
      }
      if (h >= 11 || l % 2 === 0) {
        c.fillStyle = colour("muted");
        c.textAlign = "right";
        c.fillText(String(l + 1), left - 6, top + (l + 0.5) * h);
      }
    }
    c.fillStyle = colour("muted");
    for (let m = 0; m < modalities; m++) {
      const x = left + m * (block + gap);
      c.textAlign = "left";
      if (modalities > 1) c.fillText(this.#shape.modalities[m], x, 7);
      c.fillText(`−${steps - 1}`, x, height - 6);
      c.textAlign = "right";
      c.fillText("now", x + block, height - 6);
    }
  }
}

export function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}
