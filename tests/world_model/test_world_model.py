"""Both losses against a slow reading of their equations, and which parameters each term trains."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from small import image_spec, random_batch, small, vector_spec
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal

from twm.config import Config, WorldModelConfig
from twm.nn import latents
from twm.types import Batch
from twm.world_model.world_model import Terms, WorldModel, episode_labels, loss_weights

NAMES = [field.name for field in fields(Terms)]
ENDS = {"terminated": [(0, 2), (1, 0), (3, 5)], "truncated": [(1, 3), (2, 0), (2, 4)]}


def make(config: Config, *, image: bool = True) -> WorldModel:
    torch.manual_seed(0)
    return WorldModel(config.world_model, image_spec() if image else vector_spec(), config.policy.discount)


@pytest.fixture
def most_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latents are not sampled but taken where most likely, so that two computations see the same."""
    real = latents.draw
    monkeypatch.setattr(latents, "draw", lambda logits, temperature=1.0, u=None: real(logits, 0.0))


# --------------------------------------------------------------------------------------------------
# The equations


def slow_losses(model: WorldModel, batch: Batch) -> dict[str, float]:
    """Equations 3 and 4 one step at a time. h_t sees only the steps of its episode: nothing else is passed in."""
    B, T = batch.a.shape[0], batch.a.shape[1] - 1
    sums = dict.fromkeys(NAMES, 0.0)
    for b in range(B):
        o = model.observation.scale(batch.o[b])
        q = [torch.softmax(model.observation.encode(o[t : t + 1])[0], -1) for t in range(T + 2)]
        z = torch.stack([torch.nn.functional.one_hot(p.argmax(-1), 4).flatten().float() for p in q])
        ended = [bool(batch.terminated[b, t] or batch.truncated[b, t]) for t in range(T + 1)]

        def hidden(t: int) -> Tensor:
            first = max([s + 1 for s in range(t) if ended[s]], default=0)  # noqa: B023
            part = slice(first, t + 1)
            z_, a, r = z[None, part], batch.a[b : b + 1, part], batch.r[b : b + 1, part]  # noqa: B023
            return model.dynamics(z_, a, r, torch.zeros_like(a))[0, -1]

        for t in range(1, T + 1):
            sums["decoder"] += 0.5 * float((o[t] - model.observation.decode(z[None, t])[0]).square().sum())
            sums["entropy"] += sum(float(p * math.log(p)) for p in q[t].flatten())
            if not ended[t - 1]:
                before = torch.softmax(model.dynamics.predict(hidden(t - 1)).z_logits, -1)
                sums["consistency"] -= sum(float(a) * math.log(b) for a, b in zip(q[t].flatten(), before.flatten()))
            prediction = model.dynamics.predict(hidden(t))
            z_next = prediction.c if ended[t] else z[t + 1]
            r_hat = model.dynamics.reward_mean(model.dynamics.reward_output(hidden(t), z_next))
            if not ended[t]:
                after = torch.softmax(prediction.z_logits, -1)
                sums["latent"] -= sum(float(a) * math.log(b) for a, b in zip(q[t + 1].flatten(), after.flatten()))
            sums["reward"] += 0.5 * float(batch.r[b, t] - r_hat) ** 2
            gamma, gamma_hat = (0.0 if batch.terminated[b, t] else 0.99), float(prediction.gamma_hat)
            sums["discount"] -= gamma * math.log(gamma_hat) + (1 - gamma) * math.log(1 - gamma_hat)
    return {name: value / (B * T) for name, value in sums.items()}


@pytest.mark.usefixtures("most_likely")
@pytest.mark.parametrize("ends", [{}, ENDS])
@pytest.mark.parametrize("reward_input", ["h", "next"])
def test_losses_match_the_slow_reading(ends: dict[str, list[tuple[int, int]]], reward_input: str) -> None:
    config = small(world_model__reward_input=reward_input)
    model, batch = make(config), random_batch(config, image_spec(), **ends)
    with torch.no_grad():
        terms, _ = model.losses(batch)
        expected = slow_losses(model, batch)
    assert {name: float(term) for name, term in terms.items()} == pytest.approx(expected, rel=1e-4)


@pytest.mark.usefixtures("most_likely")
@pytest.mark.parametrize("reward_input", ["h", "next"])
def test_pretraining_uses_the_same_terms(reward_input: str) -> None:
    config = small(world_model__reward_input=reward_input)
    model, batch = make(config), random_batch(config, image_spec(), **ENDS)
    together, _ = model.losses(batch)
    observation, dynamics = model.observation_losses(batch.o[:, 1:-1].flatten(0, 1)), model.dynamics_losses(batch)
    for name in ("decoder", "entropy"):
        torch.testing.assert_close(getattr(observation, name), getattr(together, name))
    for name in ("latent", "reward", "discount"):
        torch.testing.assert_close(getattr(dynamics, name), getattr(together, name))
    assert [float(x) for _, x in observation.items()[2:]] == [0.0] * 4
    assert [float(x) for _, x in dynamics.items()[:3]] == [0.0] * 3


def test_weights_are_the_papers() -> None:
    """α₁ = 5, α₂ = 0.01, β₁ = 10, β₂ = 50; decoder and latent loss count once."""
    assert loss_weights(WorldModelConfig()) == Terms(1.0, 5.0, 0.01, 1.0, 10.0, 50.0)


def test_every_term_has_its_weight() -> None:
    """Terms and weights are the same record, and the total takes every one of them."""
    model = make(small())
    assert type(model.weights) is type(model.losses(random_batch(small(), image_spec()))[0]) is Terms
    for chosen, weight in model.weights.items():
        one = Terms(*(torch.tensor(float(name == chosen)) for name in NAMES))
        assert float(model.total(one)) == pytest.approx(weight)


def test_total_by_hand() -> None:
    """2 + 5·3 + 0.01·100 + 1·7 + 10·0.5 + 50·0.1 = 35."""
    model = make(small())
    assert float(model.total(Terms(*map(torch.tensor, (2.0, 3.0, 100.0, 7.0, 0.5, 0.1))))) == pytest.approx(35.0)


def test_reward_and_discount_losses_are_likelihoods() -> None:
    """-ln N(r; r̂, 1) but for ½ ln 2π, and -ln Bernoulli(γ; γ̂) with a soft target."""
    model = make(small())
    h, r = torch.randn(4, 5, 16), torch.randn(4, 5)
    prediction = model.dynamics.predict(h)
    normal = -Normal(prediction.r_hat, 1).log_prob(r).mean() - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(model._reward_loss(model.dynamics.reward_head(h), r), normal)
    gamma = torch.where(torch.rand(4, 5) < 0.5, 0.0, 0.99)
    bernoulli = -Bernoulli(prediction.gamma_hat, validate_args=False).log_prob(gamma).mean()
    torch.testing.assert_close(model._discount_loss(h, gamma), bernoulli, rtol=1e-4, atol=1e-5)


def test_two_hot_rewards() -> None:
    config = small(world_model__reward_head="two-hot")
    model = make(config)
    output, r = model.dynamics.reward_head(torch.randn(4, 5, 16)), torch.randn(4, 5)
    assert model._reward_loss(output, r).item() == pytest.approx(math.log(63))  # an untrained head is uniform


def test_entropy_losses_by_hand() -> None:
    """Uniform over 4: H = 3 ln 4. One-hot: H = 0, and the hinge costs the whole 0.1. In between it is linear."""
    linear, hinge = make(small()), make(small(world_model__entropy_loss="hinge"))
    uniform, certain = torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3, 4)
    certain[..., 0] = 100.0
    assert float(linear._entropy_loss(uniform)) == pytest.approx(-3 * math.log(4))
    assert float(hinge._entropy_loss(uniform)) == 0.0
    assert float(hinge._entropy_loss(certain)) == pytest.approx(0.1)
    # The released code's hinge looks at the batch mean: one uniform state lifts nine certain ones to the threshold.
    mixed = torch.cat([uniform[:1, :1], certain[:1, :1].expand(1, 9, 3, 4)], 1)
    assert float(hinge._entropy_loss(mixed)) == pytest.approx(0.0, abs=1e-6)


def test_consistency_by_hand() -> None:
    """q = (¼, ¾), p = (½, ½): H(q, p) = ln 2; exchanged, H(p, q) = ½ ln 4 + ½ ln(4/3) = 0.8370."""
    q, p = torch.tensor([[0.25, 0.75]]).log(), torch.zeros(1, 2)
    exchanged = make(small(world_model__consistency_loss="predictor"))
    assert float(make(small())._consistency_loss(q, p)) == pytest.approx(math.log(2))
    assert float(exchanged._consistency_loss(q, p)) == pytest.approx(0.5 * math.log(4) + 0.5 * math.log(4 / 3))


# --------------------------------------------------------------------------------------------------
# Who learns from what

BODY = {"embed_z", "embed_a", "embed_r", "transformer"}
TRAINS = {
    "decoder": {"encoder", "decoder"},
    "entropy": {"encoder"},
    "consistency": {"encoder"},
    "latent": BODY | {"latent_head"},
    "reward": BODY | {"reward_head"},
    "discount": BODY | {"discount_head"},
}


def parts(model: WorldModel) -> dict[str, nn.Module]:
    return {name: part for whole in (model.observation, model.dynamics) for name, part in whole.named_children()}


def trained(model: WorldModel, loss: Tensor) -> set[str]:
    """Parts all of whose parameters get a gradient; a part of which only some do is an error."""
    model.zero_grad()
    loss.backward()
    result = set()
    for name, part in parts(model).items():
        reached = [p.grad is not None and bool(p.grad.any()) for p in part.parameters()]
        if not reached:
            continue
        assert all(reached) or not any(reached), f"{name}: only some parameters are trained"
        if all(reached):
            result.add(name)
    return result


@pytest.mark.parametrize("tokens", ["three", "one"])
@pytest.mark.parametrize("encoder_gradient", [0.0, 1.0])
@pytest.mark.parametrize("term", NAMES)
def test_each_term_trains_exactly_its_parameters(term: str, encoder_gradient: float, tokens: str) -> None:
    """The released code lost the latent loss by a misspelt key and never noticed: here no term can go missing."""
    config = small(world_model__encoder_gradient=encoder_gradient, world_model__tokens=tokens)
    model = make(config)
    nn.init.normal_(model.dynamics.transformer.u)
    nn.init.normal_(model.dynamics.transformer.v)
    terms, _ = model.losses(random_batch(config, image_spec(), **ENDS))
    expected = TRAINS[term] | ({"encoder"} if encoder_gradient and TRAINS[term] >= BODY else set())
    assert trained(model, getattr(terms, term)) == expected


@pytest.mark.parametrize("option", ["encoder", "predictor"])
def test_consistency_never_trains_the_predictor(option: str) -> None:
    config = small(world_model__consistency_loss=option)
    model = make(config)
    terms, _ = model.losses(random_batch(config, image_spec()))
    assert trained(model, terms.consistency) == {"encoder"}


def test_two_hot_reward_loss_reaches_everything_once_its_zeros_have_moved() -> None:
    config = small(world_model__reward_head="two-hot")
    model = make(config)
    batch = random_batch(config, image_spec())
    nn.init.normal_(model.dynamics.reward_head.output.weight)
    assert trained(model, model.losses(batch)[0].reward) == TRAINS["reward"]


def test_rewards_see_the_next_state_but_not_that_of_another_episode() -> None:
    """Where an episode ended, a state that the model draws stands for what follows, as it does in dreams."""
    config = small(world_model__reward_input="next", world_model__encoder_gradient=1.0)
    model = make(config)
    batch = random_batch(config, image_spec(), **ENDS)
    with torch.no_grad():  # sure of the first category, whatever happens
        model.dynamics.latent_head.output.weight.zero_()
        model.dynamics.latent_head.output.bias.zero_().unflatten(0, (config.world_model.latent_variables, -1))[:, 0] = (
            100.0
        )
    targets: list[Tensor] = []
    model.dynamics.embed_next.register_forward_pre_hook(lambda _, inputs: targets.append(inputs[0]))
    terms, _ = model.losses(batch)
    model.dynamics_losses(batch)
    ended = (batch.terminated | batch.truncated)[:, 1:]
    assert ended.any()
    for target in targets:
        z_next = target.unflatten(-1, (config.world_model.latent_variables, -1))
        assert (z_next.sum(-1) == 1).all()
        assert (z_next[ended][..., 0] == 1).all()
        assert not (z_next[~ended][..., 0] == 1).all()
    assert trained(model, terms.reward) == BODY | {"reward_head", "embed_next", "encoder"}


def test_pretraining_trains_one_model_alone() -> None:
    config = small()
    model, batch = make(config), random_batch(config, image_spec(), **ENDS)
    assert trained(model, model.total(model.observation_losses(batch.o[:, 1:-1].flatten(0, 1)))) == {
        "encoder",
        "decoder",
    }
    heads = {"latent_head", "reward_head", "discount_head"}
    assert trained(model, model.total(model.dynamics_losses(batch))) == BODY | heads


def test_encoder_gradient_is_a_share() -> None:
    """Half the share, half the gradient; the loss itself does not change."""
    gradients, values = [], []
    for share in (0.5, 1.0):
        config = small(world_model__encoder_gradient=share)
        model = make(config)
        torch.manual_seed(3)
        terms, _ = model.losses(random_batch(config, image_spec()))
        terms.latent.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.observation.encoder.parameters()]))
        values.append(terms.latent.item())
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1] / 2, rtol=1e-3, atol=1e-7)


# --------------------------------------------------------------------------------------------------
# Ends of episodes


def test_labels_by_hand() -> None:
    """An end after step t begins a new label at t + 1, whichever kind of end it was."""
    flags = torch.tensor([[0, 1, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0]]).bool()
    nothing = torch.zeros_like(flags)
    for terminated, truncated in ((flags, nothing), (nothing, flags), (flags, flags)):
        labels = episode_labels(Batch(nothing, nothing, nothing, terminated, truncated))
        assert labels.tolist() == [[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2]]


@pytest.mark.parametrize(("terminated", "truncated", "target"), [(0, 0, 0.99), (1, 0, 0.0), (0, 1, 0.99), (1, 1, 0.0)])
def test_discount_targets(terminated: int, truncated: int, target: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 where the episode terminated; a time limit does not end the world, so γ stays."""
    config = small()
    model = make(config)
    places = [(2, 3)]
    batch = random_batch(
        config, image_spec(), terminated=places if terminated else (), truncated=places if truncated else ()
    )
    seen: list[Tensor] = []
    monkeypatch.setattr(model, "_discount_loss", lambda h, gamma: seen.append(gamma) or gamma.sum())
    model.losses(batch)
    assert seen[0].shape == (4, 5)
    expected = torch.full((4, 5), 0.99)
    expected[2, 2] = target  # step 3 of the steps 1..T
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.usefixtures("most_likely")
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_the_next_episode_is_no_target(kind: str) -> None:
    """The observation after an end belongs to another episode: changing it changes no latent or consistency loss."""
    config = small()
    model = make(config)
    batch = random_batch(config, image_spec(), **{kind: [(0, 5), (1, 5), (2, 5), (3, 5)]})
    other = batch._replace(o=torch.cat([batch.o[:, :-1], 255 - batch.o[:, -1:]], 1))
    terms, changed = model.losses(batch)[0], model.losses(other)[0]
    assert terms == changed
    ordinary = random_batch(config, image_spec())
    other = ordinary._replace(o=other.o)
    assert model.losses(ordinary)[0].latent != model.losses(other)[0].latent


@pytest.mark.usefixtures("most_likely")
def test_starts_by_hand() -> None:
    """Each of the B·T states with the step before it; none where that step ended an episode, whichever way."""
    config = small()
    model = make(config)
    batch = random_batch(config, image_spec(), **ENDS)
    _, starts = model.losses(batch)
    z = model.encode(batch.o.flatten(0, 1)).unflatten(0, (4, 7))
    assert starts.z.shape == (4 * 5, 12)
    for b in range(4):
        for t in range(1, 6):
            i = b * 5 + t - 1
            assert torch.equal(starts.z[i], z[b, t])
            assert torch.equal(starts.context_z[i], z[b, t - 1])
            assert starts.context_a[i] == batch.a[b, t - 1]
            assert starts.context_r[i] == batch.r[b, t - 1]
            assert starts.has_context[i] == ((b, t - 1) not in ENDS["terminated"] + ENDS["truncated"])
    assert not starts.z.requires_grad


@pytest.mark.usefixtures("most_likely")
def test_states_for_a_policy_on_z_and_h() -> None:
    """z_t with h_{t-1}; where an episode begins, h is 0."""
    config = small()
    model = make(config).eval()
    batch = random_batch(config, image_spec(), **ENDS)
    z, h = model.states(batch)
    encoded = model.encode(batch.o.flatten(0, 1)).unflatten(0, (4, 7))
    torch.testing.assert_close(z, encoded[:, 1:-1])
    whole = model.dynamics(encoded[:, :-1], batch.a, batch.r, episode_labels(batch))
    for b in range(4):
        for t in range(1, 6):
            begins = (b, t - 1) in ENDS["terminated"] + ENDS["truncated"]
            expected = torch.zeros(16) if begins else whole[b, t - 1]
            torch.testing.assert_close(h[b, t - 1], expected)
    only_z, zeros = model.states(batch, hidden=False)
    assert torch.equal(only_z, z)
    assert torch.equal(zeros, torch.zeros_like(h))


# --------------------------------------------------------------------------------------------------


def test_tanh_rewards_reach_input_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(world_model__reward_transform="tanh")
    model = make(config)
    batch = random_batch(config, image_spec())
    targets: list[Tensor] = []
    fed: list[Tensor] = []
    monkeypatch.setattr(model, "_reward_loss", lambda h, r: targets.append(r) or r.sum())
    model.dynamics.embed_r.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].squeeze(-1)))
    model.losses(batch)
    torch.testing.assert_close(targets[0], batch.r[:, 1:].tanh())
    torch.testing.assert_close(fed[0], batch.r.tanh())


def test_encode_and_decode_take_what_environments_give() -> None:
    model = make(small())
    pixels = torch.randint(256, (3, 2, 16, 16), dtype=torch.uint8)
    z = model.encode(pixels)
    assert torch.equal(z, model.encode(pixels))  # temperature 0: no chance
    decoded = model.decode(z)
    assert (decoded.shape, decoded.dtype) == (pixels.shape, torch.uint8)


def test_vector_observations() -> None:
    config = small()
    model = make(config, image=False)
    terms, _ = model.losses(random_batch(config, vector_spec(), **ENDS))
    assert all(torch.isfinite(term) for _, term in terms.items())
    assert trained(model, model.total(terms)) == set(parts(model)) - {"two_hot"}
