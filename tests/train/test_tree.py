from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from twm.train import tree


def round_trip(state: dict[str, Any]) -> Any:
    node, tensors = tree.pack(state)
    return tree.unpack(node, lambda name: tensors[name].clone())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(), json_values))
def test_json_values_survive(state: dict[str, Any]) -> None:
    assert repr(round_trip(state)) == repr(state)  # repr: nan equals nan, 1 differs from True and 1.0, order counts


def test_names_are_paths_and_the_rest_is_json() -> None:
    node, tensors = tree.pack({"a": {"w": torch.ones(2), "n": 3}, "b": [np.zeros(1), None], "c": float("-inf")})
    assert list(tensors) == ["a/w", "b/0"]
    assert node == {"a": {"w": {"$tensor": "a/w"}, "n": 3}, "b": [{"$array": "b/0"}, None], "c": {"$float": "-inf"}}


@pytest.mark.parametrize(
    "dtype",
    [np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64]
    + [np.float16, np.float32, np.float64, np.complex64],
)
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_arrays_keep_dtype_and_shape(dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1, dtype)
    back = round_trip({"x": array})["x"]
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert (back == array).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_keep_dtype_and_values(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    back = round_trip({"x": tensor, "zero-d": tensor[0, 1]})
    assert back["x"].dtype == back["zero-d"].dtype == dtype
    assert torch.equal(back["x"], tensor)
    assert back["zero-d"].shape == ()


def test_parameters_come_back_without_gradient() -> None:
    back = round_trip({"x": torch.nn.Parameter(torch.ones(2))})["x"]
    assert type(back) is Tensor
    assert not back.requires_grad


def test_memory_layout_is_kept() -> None:
    channels_last = torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    node, tensors = tree.pack({"x": channels_last, "t": torch.arange(6).reshape(2, 3).T})
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    back = tree.unpack(node, lambda name: tensors[name])
    assert back["x"].stride() == channels_last.stride() == (60, 1, 15, 3)
    assert torch.equal(back["x"], channels_last)
    assert back["t"].stride() == (1, 3)
    assert back["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_shared_and_overlapping_memory_is_copied() -> None:
    base = torch.arange(6.0)
    _, tensors = tree.pack({"a": base, "b": base, "c": base[2:4], "d": base[::2], "e": base[:1].expand(3)})
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 5
    assert [tensors[name].tolist() for name in "cde"] == [[2, 3], [0, 2, 4], [0, 0, 0]]


def test_optimiser_state_goes_on_exactly() -> None:
    def make() -> tuple[torch.nn.Linear, torch.optim.Adam]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def step(model: torch.nn.Linear, optimiser: torch.optim.Adam) -> None:
        model(torch.ones(1, 3)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    model, optimiser = make()
    step(model, optimiser)
    back = round_trip({"model": model.state_dict(), "optimiser": optimiser.state_dict()})
    assert list(back["optimiser"]["state"]) == [0, 1]  # whole numbers, not texts
    twin, twin_optimiser = make()
    twin.load_state_dict(back["model"])
    twin_optimiser.load_state_dict(back["optimiser"])
    step(model, optimiser)
    step(twin, twin_optimiser)
    assert torch.equal(model.weight, twin.weight)
    assert torch.equal(model.bias, twin.bias)


@pytest.mark.parametrize("generator", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_numpy_generators_go_on_exactly(generator: type[np.random.BitGenerator]) -> None:
    rng = np.random.Generator(generator(5))
    rng.random(7)
    back = round_trip({"rng": rng.bit_generator.state})["rng"]
    twin = np.random.Generator(generator(0))
    twin.bit_generator.state = back
    assert twin.random(3).tolist() == rng.random(3).tolist()


def test_python_and_torch_generators_go_on_exactly() -> None:
    rng, torch_rng = random.Random(1), torch.Generator().manual_seed(1)
    back = round_trip({"random": rng.getstate(), "torch": torch_rng.get_state()})
    version, internal, gauss = back["random"]
    twin = random.Random()
    twin.setstate((version, tuple(internal), gauss))
    torch_twin = torch.Generator()
    torch_twin.set_state(back["torch"])
    assert twin.random() == rng.random()
    assert torch.equal(torch.rand(3, generator=torch_twin), torch.rand(3, generator=torch_rng))


def test_bytes_and_numpy_scalars() -> None:
    back = round_trip({"emulator": b"\x00\xff", "empty": b"", "n": np.int64(3), "x": np.float32(0.1), "t": (1, (2,))})
    assert back == {"emulator": b"\x00\xff", "empty": b"", "n": 3, "x": float(np.float32(0.1)), "t": [1, [2]]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1, 2}, "cannot save a/x: expected tensors, arrays, bytes or JSON values, came set"),
        (np.array(["text"]), "cannot save a/x: arrays of <U4 are not supported"),
        (torch.zeros(1, dtype=torch.complex128), "cannot save a/x: tensors of torch.complex128"),
        (torch.zeros(2).to_sparse(), "cannot save a/x: tensors of torch.float32, torch.sparse_coo"),
        ({1.5: 0}, "cannot save a/x: keys must be texts or whole numbers, came 1.5"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(TypeError) as error:
        tree.pack({"a": {"x": value}})
    assert str(error.value).startswith(text)


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="under the name a/b"):
        tree.pack({"a": {"b": torch.ones(1)}, "a/b": torch.ones(1)})


def test_select_keeps_branches_in_their_places() -> None:
    node = {"policy": {"actor": 1, "actor_lr": 2}, "world": {"$items": [[0, {"w": 3}], [1, {"w": 4}]]}, "step": 5}
    assert tree.select(node, ["policy/actor/"]) == {"policy": {"actor": 1}}
    assert tree.select(node, ["world/1", "step"]) == {"world": {"$items": [[1, {"w": 4}]]}, "step": 5}
    assert tree.select(node, ["polic"]) == {}
    assert tree.select(node, ["step/deeper"]) == {}
