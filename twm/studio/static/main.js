// The page: connects the parts.

import { Controls } from "./controls.js";
import { $, ask, el, redrawAll, whole } from "./dom.js";
import { FilmStrip } from "./filmstrip.js";
import { Attention, Policy, Predictions } from "./inside.js";
import { Latents } from "./latents.js";
import { Series } from "./series.js";
import { Share, decode, linked } from "./share.js";
import { Stage } from "./stage.js";
import { tabs } from "./tabs.js";
import { startTheme } from "./theme.js";
import { Training } from "./training.js";
import { Wire } from "./wire.js";

const wire = new Wire();
const series = new Series();
const stage = new Stage((row) => wire.send("focus", { row }));
const parts = [new Predictions(), new Policy(), new Attention()];
const latents = new Latents((variable, category) => wire.send("edit", { row: focus, variable, category }));
const controls = new Controls(wire);
const strip = new FilmStrip(wire);
const share = new Share(wire);
const training = new Training();
let [run, dream, focus, checkpoint, facts] = [0, 0, 0, 0, null];
let following = linked().dream; // a link is followed once

function status(text, kind = "") {
  $("status").textContent = text;
  $("status").className = `status ${kind}`;
}

function describe({ checkpoint, start, untrained, following: followed }) {
  const from = { replay: `from step ${whole(start.index ?? 0)} of the replay`, real: `from a fresh episode, seed ${start.seed}`, latents: "from a dream" };
  const model = `${facts.env} after ${whole(checkpoint)} interactions${untrained ? " (still pretraining: it knows little yet)" : ""}`;
  return `${model}, ${followed ? "following a link, " : ""}${from[start.kind]}`;
}

wire.on("hello", async (hello) => {
  if (!hello.ready) {
    stage.say("This run has not saved a checkpoint yet. The dream begins as soon as it does; the curves are on the training page.");
    status("Waiting for the first checkpoint");
    return;
  }
  facts = hello;
  dream = 0;
  series.sum = hello.squashed ? "Σ tanh r" : "score";
  document.title = `${hello.env} · TWM studio`;
  for (const part of parts) part.build?.(part instanceof Policy ? hello.actions : hello.attention);
  latents.build(hello.latents);
  controls.introduce(hello);
  share.introduce(hello);
  const link = following;
  following = null;
  strip.introduce(run, hello, !link);
  $("real-steps").max = hello.max_warm_up;
  $("update").hidden = true;
  if (link) {
    try {
      wire.send("follow", { recipe: await decode(link) });
    } catch {
      status("The link is damaged: no dream can be read from it.", "error");
      strip.introduce(run, hello, true);
    }
  }
});

wire.on("moment", (moment) => {
  if (moment.dream !== dream) {
    dream = moment.dream;
    series.clear();
  }
  [focus, checkpoint] = [moment.focus, moment.checkpoint];
  series.add(moment);
  stage.show(moment, series);
  for (const part of parts) part.show(moment, series);
  latents.show(moment);
  controls.show(moment);
  strip.show(moment);
  share.show(moment);
  if (!$("status").matches(".notice") || moment.t === 0) status(describe(moment));
});

wire.on("paused", () => controls.paused());
wire.on("error", ({ message }) => status(message, "error"));
wire.on("notice", ({ message }) => status(message, "notice"));
wire.on("lost", ({ reason }) => status(reason || "The studio does not answer; trying again …", "error"));
wire.on("checkpoint", ({ step, replay }) => {
  strip.grow(replay);
  $("update").hidden = false;
  // While a run pretrains, its interactions stand still and only the weights are newer.
  $("update").textContent = step === checkpoint ? "Dream with newer weights" : `Dream with checkpoint ${whole(step)}`;
});
$("update").addEventListener("click", () => {
  $("update").hidden = true;
  wire.send("again");
});

function page(id) {
  if (id === "tab-training") training.choose(run);
  redrawAll();
}

async function begin() {
  startTheme();
  tabs(document.querySelector(".top .tabs"), page);
  const runs = await ask("/api/runs");
  $("run").replaceChildren(...runs.map(({ name, env }, i) => el("option", { value: i }, `${name} · ${env}`)));
  run = Math.max(0, runs.findIndex(({ name }) => name === linked().run));
  $("run").value = run;
  $("run").addEventListener("change", () => {
    run = Number($("run").value);
    wire.connect(run);
    if (!$("page-training").hidden) training.choose(run);
  });
  window.addEventListener("hashchange", () => {
    following = linked().dream;
    const named = runs.findIndex(({ name }) => name === linked().run);
    if (named >= 0) run = named;
    $("run").value = run;
    wire.connect(run);
  });
  wire.connect(run);
}

begin().catch((error) => status(`The page could not begin: ${error.message}`, "error"));
