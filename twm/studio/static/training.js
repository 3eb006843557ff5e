// The training page: curves of any key and run, evaluation, visits, films, configuration. Asks again as runs go on.

import { $, ask, colour, el, lazily, redrawn, short, whole } from "./dom.js";
import { Films } from "./films.js";
import { bars, lines } from "./plot.js";
import { tabs } from "./tabs.js";

const EVERY = 2000; // milliseconds between looks
const FIRST = ["eval/score_mean", "episode/score", "loss/decoder", "loss/latent", "loss/reward", "policy/value", "policy/entropy"];
const MOST = 6; // curves chosen at the beginning
const [SHAPE, NARROWEST] = [1.5, 260]; // width of a chart by its height; pixels
const ONE_SCREEN = matchMedia("(min-width: 1100px) and (min-height: 680px)");

export class Training {
  #runs = [];
  #shown = new Set([0]);
  #keys = [];
  #picked = null; // null: nothing chosen by hand yet
  #curves = new Map(); // run → key → points
  #charts = new Map();
  #films = new Films();
  #visits = { edges: [], means: [] };
  #run = 0;

  constructor() {
    tabs(document.querySelector(".more .tabs"));
    $("key-filter").addEventListener("input", () => this.#listKeys());
    $("option-filter").addEventListener("input", () => this.#filterOptions());
    $("smoothing").addEventListener("input", ({ target }) => {
      target.parentElement.querySelector("output").textContent = Number(target.value).toFixed(2);
      this.#drawAll();
    });
    $("axis").addEventListener("change", () => this.#drawAll());
    redrawn($("visits"), lazily(() => this.#drawVisits()));
    redrawn($("charts"), lazily(() => this.#arrange()));
    setInterval(() => this.refresh(), EVERY);
  }

  choose(run) {
    this.#run = run;
    this.#shown.add(run);
    this.refresh();
  }

  async refresh() {
    if ($("page-training").hidden || document.hidden) return;
    try {
      this.#runs = await ask("/api/runs");
      this.#listRuns();
      await this.#loadCurves();
      const facts = await ask(`/api/runs/${this.#run}/facts`);
      this.#showEvaluation(facts);
      this.#showOptions(facts.options);
      await this.#films.show(this.#run, facts);
      this.#visits = await ask(`/api/runs/${this.#run}/visits`);
      this.#drawVisits();
    } catch (error) {
      $("status").textContent = `Training: ${error.message}`;
    }
  }

  // --------------------------------------------------------------------------------------------
  // Choosing

  #swatch = (run) => colour(`series-${(run % 6) + 1}`);

  /** The boxes stay the same ones: a click that a look at the runs falls into must not lose its box. */
  #listRuns() {
    const names = JSON.stringify(this.#runs.map(({ name }) => name));
    if ($("runs").dataset.shown !== names) $("runs").replaceChildren(...this.#runItems());
    $("runs").dataset.shown = names;
    this.#runs.forEach((run, i) => {
      const item = $("runs").children[i];
      item.querySelector("input").checked = this.#shown.has(i);
      item.querySelector(".swatch").style.background = this.#swatch(i);
      item.querySelector("small").textContent = run.finished ? "finished" : `${short(run.interactions)} / ${short(run.target)}`;
    });
  }

  #runItems() {
    return this.#runs.map(({ name }, i) => {
      const box = el("input", { type: "checkbox" });
      box.addEventListener("change", () => {
        if (box.checked) this.#shown.add(i);
        else this.#shown.delete(i);
        this.refresh();
      });
      return el("li", {}, el("label", {}, box, el("span", { className: "swatch" }), name, el("small")));
    });
  }

  async #loadCurves() {
    const all = new Set();
    const asked = this.#picked ?? new Set(FIRST);
    this.#curves.clear();
    for (const run of [...this.#shown].sort()) {
      if (run >= this.#runs.length) continue;
      const query = new URLSearchParams([...asked].map((key) => ["key", key]));
      const { keys, curves } = await ask(`/api/runs/${run}/curves?${query}`);
      keys.forEach((key) => all.add(key));
      this.#curves.set(run, curves);
    }
    const keys = [...all].filter((key) => key !== "interactions").sort();
    if (this.#picked === null && keys.length) {
      this.#picked = new Set([...FIRST.filter((key) => all.has(key)), ...keys].slice(0, MOST));
      if ([...this.#picked].some((key) => !FIRST.includes(key))) return this.#loadCurves();
    }
    if (keys.join() !== this.#keys.join()) {
      this.#keys = keys;
      this.#listKeys();
    }
    this.#layCharts();
    return undefined;
  }

  #listKeys() {
    const filter = $("key-filter").value.toLowerCase();
    const items = this.#keys
      .filter((key) => key.toLowerCase().includes(filter))
      .map((key) => {
        const box = el("input", { type: "checkbox", checked: this.#picked?.has(key) ?? false });
        box.addEventListener("change", () => {
          if (box.checked) this.#picked.add(key);
          else this.#picked.delete(key);
          this.refresh();
        });
        return el("li", {}, el("label", {}, box, key));
      });
    $("keys").replaceChildren(...(items.length ? items : [el("li", { className: "empty" }, "Nothing logged yet.")]));
  }

  // --------------------------------------------------------------------------------------------
  // Curves

  #layCharts() {
    const wanted = [...(this.#picked ?? [])];
    for (const [key, chart] of this.#charts) {
      if (!wanted.includes(key)) {
        chart.node.remove();
        chart.end();
        this.#charts.delete(key);
      }
    }
    for (const key of wanted) {
      if (this.#charts.has(key)) continue;
      const [canvas, value] = [el("canvas", { role: "img" }), el("span")];
      const node = el("figure", { className: "chart" }, el("h3", {}, key, value), el("div", { className: "fill" }, canvas));
      const chart = { node, canvas, value, hover: null };
      this.#charts.set(key, chart);
      $("charts").append(node);
      chart.end = redrawn(canvas, lazily(() => this.#draw(key)));
      canvas.addEventListener("mousemove", ({ offsetX }) => ((chart.hover = offsetX), this.#draw(key)));
      canvas.addEventListener("mouseleave", () => ((chart.hover = null), this.#draw(key)));
    }
    this.#arrange();
    this.#drawAll();
  }

  /** Where the page is one screen: as many columns as make the charts largest. Elsewhere the stylesheet decides. */
  #arrange() {
    const { clientWidth: width, clientHeight: height } = $("charts");
    const count = this.#charts.size;
    const size = (columns) => Math.min(width / columns / SHAPE, height / Math.ceil(count / columns));
    const columns = Array.from({ length: Math.max(1, Math.floor(width / NARROWEST)) }, (_, i) => i + 1);
    const best = columns.reduce((a, b) => (size(b) > size(a) ? b : a));
    $("charts").style.gridTemplateColumns = ONE_SCREEN.matches && count ? `repeat(${best}, minmax(0, 1fr))` : "";
  }

  #drawAll() {
    for (const key of this.#charts.keys()) this.#draw(key);
  }

  #draw(key) {
    const chart = this.#charts.get(key);
    if (!chart || !chart.canvas.isConnected || !chart.canvas.clientHeight) return;
    const byTime = $("axis").value === "time" || [...this.#curves.values()].every((curves) => standsStill(curves[key] ?? []));
    const all = [...this.#curves].flatMap(([run, curves]) => {
      const raw = (curves[key] ?? []).map(([interactions, seconds, value]) => [byTime ? seconds / 60 : interactions, value]);
      const points = smooth(byTime ? raw : lastOfEach(raw), Number($("smoothing").value));
      return points.length ? [{ run, points, colour: this.#swatch(run), dots: points.length < 40 }] : [];
    });
    const from = chart.scale;
    const hovered = chart.hover === null || !from ? undefined : from.x0 + ((chart.hover - from.area.left) / (from.area.right - from.area.left)) * (from.x1 - from.x0);
    const [first, last] = [Math.min(...all.map((l) => l.points[0][0])), Math.max(...all.map((l) => l.points.at(-1)[0]))];
    const x = all.length ? [first === last ? 0 : first, last] : [0, 1];
    chart.scale = lines(chart.canvas, all, { cursor: hovered, x, axis: byTime ? "minutes" : "interactions" });
    const values = all.map(({ points }) => {
      const [at, value] = hovered === undefined ? points.at(-1) : points.reduce((a, b) => (Math.abs(b[0] - hovered) < Math.abs(a[0] - hovered) ? b : a));
      return `${short(value)}${hovered === undefined ? "" : ` at ${short(at)}`}`;
    });
    chart.value.textContent = values.join(" · ") || "no values";
    chart.canvas.setAttribute("aria-label", `Curve of ${key} over ${byTime ? "minutes" : "interactions"}; newest: ${values.join(", ") || "none"}`);
  }

  #drawVisits() {
    const { edges, means, entries = 0, total = 0 } = this.#visits;
    if (!$("visits").clientHeight) return;
    bars($("visits"), edges, means, "entries");
    $("visits-note").textContent = !entries ? "no replay" : total ? `${whole(total)} over ${whole(entries)} entries` : "nothing sampled yet";
    $("visits").setAttribute("aria-label", `Histogram of sampling visits: ${$("visits-note").textContent}`);
  }

  // --------------------------------------------------------------------------------------------
  // Facts

  #showEvaluation({ evaluation, interactions, target, name }) {
    const place = $("evaluation");
    if (!evaluation) {
      place.replaceChildren(el("p", { className: "read" }, `${name}: ${whole(interactions)} of ${whole(target)} interactions; the final evaluation comes at the end.`));
      return;
    }
    if (!Number.isFinite(evaluation.mean)) {
      const { held_out: losses, held_out_steps: steps } = evaluation; // trained on recorded episodes
      place.replaceChildren(el("p", { className: "read" }, losses ? `Loss ${short(losses.total)} on ${whole(steps)} held-out steps.` : "Not evaluated."));
      return;
    }
    const { mean, low, high, episodes, random_mean: chance, optimal_return: best } = evaluation;
    const interval = Number.isFinite(low) && Number.isFinite(high) ? ` [${short(low)}, ${short(high)}] ` : " ";
    const notes = [chance === undefined || chance === null ? null : `random ${short(chance)}`, best === undefined || best === null ? null : `best possible ${short(best)}`];
    place.replaceChildren(
      el("p", { className: "score" }, short(mean), el("small", {}, `${interval}mean of ${episodes.length} episodes`)),
      el("p", { className: "read" }, notes.filter(Boolean).join(" · ")),
    );
  }

  #showOptions(options) {
    const text = JSON.stringify(options);
    if ($("option-rows").dataset.shown === text) return;
    $("option-rows").dataset.shown = text;
    const rows = options.map(({ option, value, paper, differs }) => {
      const title = differs ? `the paper's preset has ${paper}` : "as in the paper's preset";
      return el("tr", { className: differs ? "differs" : "", title }, el("th", { scope: "row" }, option), el("td", {}, value));
    });
    $("option-rows").replaceChildren(...rows);
    this.#filterOptions();
  }

  #filterOptions() {
    const filter = $("option-filter").value.toLowerCase();
    for (const row of $("option-rows").children) row.hidden = !row.textContent.toLowerCase().includes(filter);
  }
}

/** While a run pretrains, its interactions stand still: its curves are drawn over time until they go on. */
const standsStill = (points) => points.length > 1 && points.every(([interactions]) => interactions === points[0][0]);

/** Of points with the same x the last: what came before it is the pretraining, which only time spreads out. */
const lastOfEach = (points) => points.filter(([x], i) => x !== points[i + 1]?.[0]);

/** Exponential average; `weight` is that of the past. The first values are not pulled towards 0. */
function smooth(points, weight) {
  if (!weight) return points;
  let [sum, norm] = [0, 0];
  return points.map(([x, y]) => {
    sum = sum * weight + y * (1 - weight);
    norm = norm * weight + (1 - weight);
    return [x, sum / norm];
  });
}
