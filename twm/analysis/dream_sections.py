"""The parts of a run's report that dream: film strips, frame stacks, attention, world model quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twm.agent import Agent
from twm.analysis import attention, dreaming, quality, quality_figures, trajectories
from twm.analysis.recording import Episode, record
from twm.analysis.section import Section, Writer
from twm.analysis.tables import Row
from twm.analysis.trajectories import Strip
from twm.config import Config, ConfigError
from twm.train.evaluate import load_agent, own_random_numbers
from twm.train.files import write_json
from twm.world_model.open_loop import Context, Rollout

FILM_STEPS = 15
MOVING_STEPS, MOVING_FILE = 50, "imagined-beside-real.gif"
STOCHASTIC_STEPS, STOCHASTIC_EVERY = 45, 3
LONG_STEPS, LONG_EVERY, LONG_CANDIDATES = 230, 5, 8
STACK_STEPS = (1, 4, 8, 12, 15)
WINDOWS = 64  # sequences whose attention is averaged


@dataclass(frozen=True)
class Specimen:
    """A run's agent and fresh episodes to look at it with."""

    agent: Agent
    config: Config
    interactions: int
    played: list[Episode]  # by the policy
    random: list[Episode]
    seed: int

    def action_names(self, a: Any) -> list[str]:
        return [trajectories.short_action(self.agent.spec.actions[int(i)]) for i in a]


def prepare(run: Path, steps: int, seed: int) -> Specimen:
    """Load a run and play ``steps`` fresh interactions: half by its policy, half at random."""
    if steps < 2:
        raise ConfigError(f"half of the steps are played by each of two policies: expected at least 2, got {steps}")
    agent, config, interactions = load_agent(run)
    played = record(config, steps - steps // 2, seed=seed, agent=agent)
    return Specimen(agent, config, interactions, played, record(config, steps // 2, seed=seed), seed)


def busiest(episodes: Sequence[Episode], steps: int, skip: Sequence[tuple[int, int]] = ()) -> tuple[int, int]:
    """(episode, start) of the window of ``steps`` steps with the most rewards in it; its last observation exists.

    Windows that overlap one of ``skip`` are passed over. Chosen for what happens there, not for how well it is
    dreamed. Of equal ones the first; where no episode is long enough, the start of the longest.
    """
    best, where = -1, None
    for number, episode in enumerate(episodes):
        paid = np.concatenate([[0], np.cumsum(episode.r != 0)])
        for start in range(len(episode) - steps):
            taken = any(number == other and abs(start - first) < steps for other, first in skip)
            count = int(paid[start + steps] - paid[start])
            if count > best and not taken:
                best, where = count, (number, start)
    return where if where is not None else (int(np.argmax([len(e) for e in episodes])), 0)


# --------------------------------------------------------------------------------------------------
# Film strips


def film_section(writer: Writer, specimen: Specimen) -> Section:
    """Two moments: what really happened, and a dream from the same state with the same actions."""
    strips, rows = [], []
    places: list[tuple[int, int]] = []
    for number in (1, 2):
        place = busiest(specimen.played, FILM_STEPS, places)
        if place in places:
            break
        places.append(place)
        for each in real_and_dream(specimen, *place):
            strips.append(trajectories.relabel(each, f"{each.label} {number}"))
            rows += strip_table(strips[-1])
    moving = trajectories.save_film(real_and_dream(specimen, *places[0], MOVING_STEPS), writer.out_dir / MOVING_FILE)
    text = (
        "Above each frame: the action taken on it and the reward that followed. The dream starts from the encoded "
        f"first frame, takes the same actions and sees nothing else. {_scale_of_rewards(specimen)}The moments shown "
        "are those with the most rewards among fresh episodes of the policy. "
        f"{moving.name} shows the first as a moving picture of up to {MOVING_STEPS} steps."
    )
    return writer.section("Imagined beside real", text, rows, trajectories.film_figure(strips))


def _scale_of_rewards(specimen: Specimen) -> str:
    squashed = specimen.config.world_model.reward_transform == "tanh"
    return "Rewards are shown as the model sees them, tanh(r). " if squashed else ""


def real_and_dream(specimen: Specimen, number: int, start: int, steps: int = FILM_STEPS) -> tuple[Strip, Strip]:
    """The strips of one moment: start and ``steps`` steps, fewer where the episode is shorter."""
    agent, episode = specimen.agent, specimen.played[number]
    steps = min(steps, len(episode) - 1 - start)
    if steps < 1:
        raise ConfigError(f"no fresh episode is longer than {len(episode)} steps: nothing to dream of")
    window = slice(start, start + steps)
    names = specimen.action_names(episode.a[window])
    frames = trajectories.pictures(episode.o[start : start + steps + 1], agent.spec)
    rewards = agent.world_model.dynamics.squash(torch.as_tensor(episode.r[window]))  # on the scale of the dream's
    real = trajectories.strip("real", frames, names, rewards.numpy())
    rollout = _dream_on(specimen, episode, [start], steps)
    frames = trajectories.pictures(dreaming.decode(agent.world_model, rollout.z[0]), agent.spec)
    return real, trajectories.strip("dream", frames, names, rollout.r[0].cpu().numpy())


def _dream_on(specimen: Specimen, episode: Episode, starts: Sequence[int], steps: int) -> Rollout:
    """Dreams with the recorded actions."""
    world_model = specimen.agent.world_model
    z = dreaming.encode(world_model, episode.o)
    with own_random_numbers(specimen.seed):
        context = dreaming.contexts(episode, z, starts)
        return dreaming.dream(world_model, context, steps, dreaming.recorded(episode, starts))


def stochastic_section(writer: Writer, specimen: Specimen) -> Section:
    """Three dreams of the policy from one state."""
    place = busiest(specimen.played, FILM_STEPS)
    strips = policy_strips(specimen, [place] * 3, STOCHASTIC_STEPS, STOCHASTIC_EVERY)
    rows = [row for each in strips for row in strip_table(each)]
    text = (
        f"Three dreams of {STOCHASTIC_STEPS} steps from the same state, the policy acting. Every third frame; the "
        "rewards in between are summed. Both the policy's actions and the next latent states are drawn at random."
    )
    return writer.section("Three dreams from one state", text, rows, trajectories.film_figure(strips))


def long_section(writer: Writer, specimen: Specimen) -> Section:
    """One long dream of the policy."""
    places = [(n, t) for n, e in enumerate(specimen.played) for t in range(len(e))]
    chosen = [places[i] for i in np.linspace(0, len(places) - 1, LONG_CANDIDATES).round().astype(int)]
    strips = policy_strips(specimen, chosen, LONG_STEPS, LONG_EVERY)
    longest = max(strips, key=lambda each: each.steps[-1])
    text = (
        f"A dream of up to {LONG_STEPS} steps, the policy acting; the model was trained on sequences of "
        f"{specimen.config.world_model.sequence_length}. Every fifth frame; the rewards in between are summed. Of "
        f"{LONG_CANDIDATES} dreams from states spread evenly over fresh episodes, the one that lasts longest (the "
        "first of several)."
    )
    notes = [f"all {LONG_CANDIDATES} dreams end before step {LONG_STEPS}"] if longest.ending else []
    figure = trajectories.film_figure([trajectories.relabel(longest, "dream")])
    return writer.section("A long dream", text, strip_table(longest), figure, notes)


def policy_strips(specimen: Specimen, places: Sequence[tuple[int, int]], steps: int, every: int) -> list[Strip]:
    """A dream from each (episode, start), the policy acting, as a strip up to where the model believes it over."""
    agent, world_model = specimen.agent, specimen.agent.world_model
    parts = []
    for number, start in places:
        episode = specimen.played[number]
        first = max(0, start - dreaming.CONTEXT)
        near = Episode(episode.o[first : start + 1], episode.a[first : start + 1], episode.r[first : start + 1], False)
        parts.append(dreaming.contexts(near, dreaming.encode(world_model, near.o), [start - first]))
    context = Context(*(torch.cat(x) for x in zip(*parts, strict=True)))
    with own_random_numbers(specimen.seed):
        rollout = dreaming.dream(world_model, context, steps, dreaming.by_policy(agent))
    strips = []
    for row, length in enumerate(dreaming.lengths(world_model, rollout.gamma)):
        ended = bool(dreaming.over(world_model, rollout.gamma)[row].any())
        z = rollout.z[row, : length if ended else length + 1]  # behind an end there is nothing to see
        frames = trajectories.pictures(dreaming.decode(world_model, z), agent.spec)
        names, r = specimen.action_names(rollout.a[row, :length]), rollout.r[row, :length].cpu().numpy()
        ending = f"over after\n{length} steps" if ended else ""
        strips.append(trajectories.strip(f"dream {row + 1}", frames, names, r, every=every, ending=ending))
    return strips


def strip_table(strip: Strip) -> list[Row]:
    """What is written above the frames of a strip."""
    return [
        {"Strip": strip.label, "Step": step, "Action": action, "Reward": float(r)}
        for step, action, r in zip(strip.steps, strip.actions, strip.rewards, strict=False)
    ]


# --------------------------------------------------------------------------------------------------
# Frame stacks


def stacks_section(writer: Writer, specimen: Specimen) -> Section:
    """Stacks decoded from predicted latent states beside the real ones."""
    spec, title = specimen.agent.spec, "Predicted frame stacks"
    if spec.stack == 1 or not spec.is_image:
        what = "single frames" if spec.is_image else "numbers"
        return Section(title, f"Observations of {spec.name} are {what} here, so there are no stacks to show.")
    number, start = busiest(specimen.played, FILM_STEPS)
    episode = specimen.played[number]
    steps = [k for k in STACK_STEPS if start + k < len(episode)]
    if not steps:
        raise ConfigError(f"no fresh episode is longer than {len(episode)} steps: nothing to dream of")
    rollout = _dream_on(specimen, episode, [start], max(steps))
    predicted = dreaming.decode(specimen.agent.world_model, rollout.z[0, steps])
    rows = {
        "real": trajectories.gray_stacks(episode.o[[start + k for k in steps]], spec),
        "dream": trajectories.gray_stacks(predicted, spec),
    }
    text = (
        "Each frame of a stack has its own colour where it differs from the others, so what moves leaves a coloured "
        "trail. Below, the stacks decoded from predicted latent states of the first dream above."
    )
    titles = [f"step {k}" for k in steps]
    return writer.section(title, text, figure=trajectories.stacks_figure(rows, titles))


# --------------------------------------------------------------------------------------------------
# Attention


def attention_sections(writer: Writer, specimen: Specimen) -> list[Section]:
    """Rollout for one step and averaged over many, on imagined and on real sequences."""
    dynamics = specimen.agent.world_model.dynamics
    real, imagined, T = sequences(specimen)
    notes = (
        [f"sequences of {T} steps: the longest that fresh episodes and dreams allow"] if _reach(specimen) >= T else []
    )
    one, many = {}, {}
    for source, (z, a, r) in (("imagined", imagined), ("real", real)):
        rows = attention.attention_rows(dynamics, z, a, r).cpu().numpy()  # (B, L, N)
        n, rewards = dynamics.tokens_per_step, r.cpu().numpy()
        one[f"{source} sequence"] = attention.by_modality(rows[0], n, rewards[0])
        many[f"{source}, mean of {len(rows)}"] = attention.by_modality(rows.mean(0), n)
    text = (
        "How much of the hidden state h, after each layer, comes from each past state, action and reward: attention "
        "rollout, relative to what indifferent attention under the same causal mask would give."
    )
    first = f"{text} One sequence each; numbers are its rewards."
    mean = f"{text} Mean over {len(real[0])} real and {len(imagined[0])} imagined sequences."
    return [
        writer.section(
            "Attention at one step", first, attention.map_table(one), attention.attention_figure(one), notes
        ),
        writer.section(
            "Attention on average", mean, attention.map_table(many), attention.attention_figure(many), notes
        ),
    ]


Sequences = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""z (B, T, Z), a (B, T), r (B, T) on the model's scale."""


def _reach(specimen: Specimen) -> int:
    """Steps back that a query may look."""
    return specimen.config.world_model.sequence_length


def sequences(specimen: Specimen) -> tuple[Sequences, Sequences, int]:
    """Real windows and dreams that begin where they do, of as many steps as attention spans, the busiest first."""
    world_model = specimen.agent.world_model
    T = min(_reach(specimen) + 1, max(len(e) for e in specimen.played))
    first = busiest(specimen.played, T - 1)
    places = [(n, t) for n, e in enumerate(specimen.played) for t in range(len(e) - T + 1)]
    spread = np.linspace(0, len(places) - 1, min(WINDOWS, len(places))).round().astype(int)
    chosen = list(dict.fromkeys([first, *(places[i] for i in spread)]))[:WINDOWS]
    real, starts = [], []
    for number, start in chosen:
        episode = specimen.played[number]
        window = slice(start, start + T)
        z = dreaming.encode(world_model, episode.o[window])
        a, r = (torch.as_tensor(x[window], device=z.device) for x in (episode.a, episode.r))
        real.append((z, a, world_model.dynamics.squash(r)))
        starts.append(z[:1])
    z, a, r = (torch.stack(x) for x in zip(*real, strict=True))
    begin = Context(torch.stack(starts), a[:, :0], r[:, :0], torch.zeros_like(a[:, 0]))
    with own_random_numbers(specimen.seed):
        dream = dreaming.dream(world_model, begin, T, dreaming.by_policy(specimen.agent))
    lasting = ~dreaming.over(world_model, dream.gamma[:, : T - 1]).any(1)
    keep = lasting if bool(lasting.any()) else torch.ones_like(lasting)
    return (z, a, r), (dream.z[keep, :T], dream.a[keep], dream.r[keep]), T


# --------------------------------------------------------------------------------------------------
# Quality


def quality_section(writer: Writer, specimen: Specimen) -> Section:
    """Errors of open-loop dreams against copying the last frame."""
    sources = {"policy": specimen.played, "random": specimen.random}
    with own_random_numbers(specimen.seed):
        found = quality.measure(specimen.agent, sources)
    writer.out_dir.mkdir(parents=True, exist_ok=True)
    write_json(writer.out_dir / "world-model-quality.json", found)
    text = (
        "Open-loop dreams with recorded actions on episodes that the model has never seen. Error: mean squared, of the "
        "newest frame with pixels in [0, 1]. Correlations are between predicted and real rewards."
    )
    notes = []
    for source in ("policy", "random"):
        ends = found[source]["ends"]
        counts = f"{ends['happened']} episode ends happened, {ends['predicted']} were predicted"
        notes.append(f"{source}: {counts}; precision {_share(ends['precision'])}, recall {_share(ends['recall'])}")
    rows = quality_figures.quality_table(found)
    return writer.section("World model quality", text, rows, quality_figures.quality_figure(found), notes)


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
