"""The PyTorch backend under PyTorch's own ways: modules, state dicts, modes, autograd, compilation."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from attention_core.draws import uniform
from backends import torch as attention
from backends.torch import arrays, runtime
from parity_tests.cases.suite import all_cases
from parity_tests.cli.main import main
from parity_tests.tests.places import ROOT
from parity_tests.third_party.attention import torch as third_party

MAKERS: dict[str, Callable[..., torch.nn.Module]] = {
    "AdditiveAttention": lambda **keywords: attention.AdditiveAttention(9, 10, 8, **keywords),
    "GeneralAttention": lambda **keywords: attention.GeneralAttention(9, 10, **keywords),
    "ConcatAttention": lambda **keywords: attention.ConcatAttention(9, 10, 8, **keywords),
    "GRU": lambda **keywords: attention.GRU(4, 5, 2, **keywords),
    "GRUEncoder": lambda **keywords: attention.GRUEncoder(11, 6, 5, 2, **keywords),
    "BahdanauDecoder": lambda **keywords: attention.BahdanauDecoder(
        11, 4, 5, 2, memory_size=6, attention_size=8, **keywords
    ),
}


def drawn(name: str, *shape: int) -> torch.Tensor:
    return torch.tensor(uniform(name, shape), dtype=torch.float32)


ARGUMENTS = {
    "AdditiveAttention": (drawn("q", 2, 5, 9), drawn("k", 2, 7, 10), drawn("v", 2, 7, 6), torch.tensor([3, 6])),
    "GeneralAttention": (drawn("q", 2, 5, 9), drawn("k", 2, 7, 10), drawn("v", 2, 7, 6), torch.tensor([3, 6])),
    "ConcatAttention": (drawn("q", 2, 5, 9), drawn("k", 2, 7, 10), drawn("v", 2, 7, 6), torch.tensor([3, 6])),
    "GRU": (drawn("x", 3, 7, 4), torch.tensor([7, 2, 4])),
    "GRUEncoder": (torch.arange(21).reshape(3, 7) % 11, torch.tensor([7, 2, 4])),
    "BahdanauDecoder": (
        torch.arange(12).reshape(3, 4) % 11,
        drawn("m", 3, 7, 6),
        drawn("s", 2, 3, 5),
        torch.tensor([7, 2, 4]),
    ),
}
LAYERS = list(MAKERS)


def test_the_backend_imports_the_real_torch():
    assert inspect.getmodule(attention.masked_softmax).torch is torch and hasattr(torch, "Tensor")


@pytest.mark.parametrize("name", LAYERS)
def test_a_state_dict_moves_a_layer(name: str):
    first, second = MAKERS[name](), MAKERS[name]()
    second.load_state_dict(first.state_dict())
    for one, other in zip(first(*ARGUMENTS[name]), second(*ARGUMENTS[name]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_owns_exactly_its_canonical_parameters(name: str):
    layer = MAKERS[name]()
    assert sum(p.numel() for p in layer.parameters()) == sum(a.size for a in attention.get_parameters(layer).values())


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_goes_to_another_device_and_dtype(name: str):
    layer = MAKERS[name](device="meta")
    outputs = layer.to_empty(device="cpu").to(torch.float64)
    assert {parameter.dtype for parameter in outputs.parameters()} == {torch.float64}
    meta = MAKERS[name](dtype=torch.float64).to("meta")
    assert {parameter.device.type for parameter in meta.parameters()} == {"meta"}


@pytest.mark.parametrize("name", LAYERS)
def test_dropout_follows_train_and_eval(name: str):
    torch.manual_seed(0)
    layer = MAKERS[name](dropout=0.5)
    training = [layer.train()(*ARGUMENTS[name])[0] for _ in range(2)]
    assert not torch.equal(*training)
    evaluated = [layer.eval()(*ARGUMENTS[name])[0] for _ in range(2)]
    torch.testing.assert_close(*evaluated, rtol=0, atol=0)


def test_the_weights_of_training_are_those_before_dropout():
    torch.manual_seed(0)
    layer = MAKERS["AdditiveAttention"](dropout=0.5).train()
    _, weights = layer(*ARGUMENTS["AdditiveAttention"])
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 5))


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_of_an_optimiser_changes_every_parameter(name: str):
    layer = MAKERS[name]()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    sum(output.square().sum() for output in layer(*ARGUMENTS[name])).backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    for key, value in layer.state_dict().items():
        assert not torch.equal(value, before[key]), key


def test_gradients_pass_autograds_own_check():
    layer = attention.AdditiveAttention(3, 2, 4, dtype=torch.float64)
    arguments = [
        torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in ((1, 2, 3), (1, 4, 2), (1, 4, 5))
    ]
    assert torch.autograd.gradcheck(lambda *given: layer(*given, torch.tensor([3])), arguments)


def test_functions_work_under_vmap_and_grad_of_torch_func():
    scores, lens = drawn("scores", 3, 2, 5, 7), torch.tensor([3, 6])
    mapped = torch.func.vmap(lambda one: attention.masked_softmax(one, lens))(scores)
    torch.testing.assert_close(mapped[1], attention.masked_softmax(scores[1], lens))
    gradient = torch.func.grad(lambda one: attention.masked_softmax(one, lens).square().sum())(scores[0])
    assert (gradient[0, :, 3:] == 0).all() and (gradient[0, :, :3] != 0).all()


def test_a_leaf_that_requires_gradients_is_not_written_to():
    """Masking in place changes the caller's tensor, and fails on a leaf."""
    scores = drawn("scores", 2, 5, 7).requires_grad_()
    before = scores.detach().clone()
    attention.masked_softmax(scores, torch.tensor([3, 6])).square().sum().backward()
    torch.testing.assert_close(scores.detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_scores_are_normalised_in_float32(dtype: torch.dtype):
    scores = (8 * drawn("scores", 2, 5, 700)).to(dtype)
    weights = attention.masked_softmax(scores)
    assert weights.dtype == dtype
    torch.testing.assert_close(weights, torch.softmax(scores.float(), dim=-1).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["AdditiveAttention", "GRUEncoder", "BahdanauDecoder"])
def test_a_layer_is_one_graph_for_torch_compile(name: str):
    """aot_eager tests the graph, forward and backward, without the compiler's minute."""
    torch._dynamo.reset()
    layer = MAKERS[name]()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    for function in (layer, compiled):
        layer.zero_grad()
        outputs = function(*ARGUMENTS[name])
        sum(output.square().sum() for output in outputs).backward()
        results.append([*outputs, *(parameter.grad.clone() for parameter in layer.parameters())])
    for eager, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, eager, rtol=1e-5, atol=1e-6)


def test_inductor_compiles_a_layer_with_fully_masked_rows():
    torch._dynamo.reset()
    layer = attention.DotProductAttention()
    arguments = (drawn("q", 2, 5, 4), drawn("k", 2, 7, 4), drawn("v", 2, 7, 6), torch.tensor([0, 6]))
    for compiled, eager in zip(torch.compile(layer, fullgraph=True)(*arguments), layer(*arguments), strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
        assert (compiled[0] == 0).all()


def test_greedy_decoding_has_no_gradient_and_stops_early():
    (case,) = all_cases().select("BahdanauDecoder-greedy")
    inputs, parameters = case.at("float32")
    decoder = attention.BahdanauDecoder(**case.config)
    parameters["dense.b"][2] += 8.0  # all sequences end soon
    attention.set_parameters(decoder, parameters)
    steps = []
    advance = decoder._advance
    decoder._advance = lambda *given: steps.append(1) or advance(*given)
    given = {key: torch.tensor(array) for key, array in inputs.items()}
    tokens, lengths, weights = decoder.greedy(**given, bos=1, eos=2, max_steps=1000)
    assert not weights.requires_grad and tokens.shape == (3, 1000)
    assert len(steps) == int(lengths.max()) + 1 < 100


def test_a_call_that_changes_its_argument_cannot_hide_behind_a_copy():
    given = torch.zeros(3)

    def change(layer: None, array: torch.Tensor) -> tuple[torch.Tensor]:
        array.data[0] = 1.0
        return (2 * array,)

    runtime.vjp(change, {"array": given}, {})
    assert given.tolist() == [1.0, 0.0, 0.0] and not given.requires_grad


def test_parameters_can_be_read_as_gradients():
    layer = MAKERS["GRU"]()
    layer(*ARGUMENTS["GRU"])[0].sum().backward()
    gradients = attention.get_parameters(layer, read=lambda parameter: parameter.grad)
    np.testing.assert_array_equal(gradients["1.b_hn"], layer.layers[1].b_hn.grad.numpy())


def test_the_example_of_parity_in_a_project_passes():
    example = ROOT / "examples" / "test_my_model.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(example)]
    said = subprocess.run(command, cwd=example.parents[1], capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "1 passed" in said.stdout, said.stdout


def test_bfloat16_keeps_its_bits_on_the_way_in_and_out():
    bits = np.arange(0, 2**16, 7, dtype=np.uint16)[:9360].reshape(-1, 3)[:, ::2]
    array = bits.view("bfloat16")
    tensor = arrays.from_numpy(array)
    assert tensor.dtype == torch.bfloat16 and tensor.shape == bits.shape
    back = arrays.to_numpy(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back.view(np.uint16), bits)


def test_a_rule_makes_its_mask_on_the_requested_device():
    options = {
        "causal_mask": {},
        "window_mask": {"left": 1, "right": 1},
        "block_mask": {"size": 2},
        "stride_mask": {"stride": 2},
    }
    for name, own in options.items():
        made = getattr(attention, name)(2, 3, **own, device="meta")
        assert made.device.type == "meta" and made.shape == (1, 2, 3)
    assert attention.alibi_bias(4, 2, 3, device="meta").device.type == "meta"
    assert attention.relative_buckets(2, 3, num_buckets=4, device="meta").device.type == "meta"


@pytest.mark.parametrize(
    ("fast", "other", "function"),
    [
        ("multihead_attention_fast", "multihead_attention_eval", "_native_multi_head_attention"),
        ("transformer_encoder_layer_fast", "transformer_encoder_layer_eval", "_transformer_encoder_layer_fwd"),
    ],
)
def test_the_target_of_the_fast_path_uses_it(monkeypatch: pytest.MonkeyPatch, fast: str, other: str, function: str):
    (case,) = (own for own in all_cases() if own.id == "MultiHeadAttention-mask")
    inputs, parameters = ({name: torch.tensor(array) for name, array in own.items()} for own in case.at("float32"))
    taken, plain = [], getattr(torch, function)
    monkeypatch.setattr(torch, function, lambda *given: taken.append(1) or plain(*given))
    arrays = {name: inputs[name] for name in ("queries", "keys", "values", "mask")}
    getattr(third_party, fast).MultiHeadAttention(parameters, **arrays, num_heads=3)
    assert taken
    getattr(third_party, other).MultiHeadAttention(parameters, **arrays, num_heads=3)
    assert len(taken) == 1


# ------------------------------------------------------------------------------------------------ the pages


def test_the_code_of_the_readme_prints_the_output_below_it():
    _, code, _, printed, *_ = (ROOT / "README.md").read_text(encoding="utf-8").split("```")
    command = [sys.executable, "-c", code.removeprefix("python")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said == printed.removeprefix("\n")


def test_the_heatmap_of_the_readme_is_drawn_from_the_weights_above_it(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    first, second = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(first + second, {})
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_the_target_of_the_page_has_the_two_documented_bugs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    source = page.partition("# mine.py\n")[2].partition("```")[0]
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["check", "mine.py", "--dtype", "float64", "--json", "out.json"])
    assert result.exit_code == 1, result.output
    cells = json.loads((tmp_path / "out.json").read_text())["cells"]
    drawn = [cell for cell in cells if any(part in cell["case"] for part in ("cover_", "-drawn_", "-second_"))]
    assert {cell["check"] for cell in drawn if cell["status"] == "fail"} == {"nan"}
    red = {cell["case"] for cell in cells if cell["status"] == "fail" and cell not in drawn}
    # Rows of one length below 1 and one mask that opens nothing: "lens_and_mask", "heads_mask".
    shapes = ("fully_masked", "infinite", "hidden_nan", "hidden_inf", "lens_and_mask", "heads_mask")
    assert red == {f"{name}-{case}" for name in ("masked_softmax", "AdditiveAttention") for case in shapes} & {
        cell["case"] for cell in cells
    } - {"masked_softmax-hidden_nan", "masked_softmax-hidden_inf"}
    assert "looks like  masked_softmax: A fully masked row is NaN." in result.output


@pytest.mark.parametrize("hidden", [-torch.inf, torch.nan])
def test_a_value_that_a_score_of_minus_infinity_hides_has_no_effect(hidden: float):
    """Values are cleared again only where a score hides one, and a weight of 0 does not silence a NaN."""
    layer = attention.GeneralAttention(1, 1)
    with torch.no_grad():
        layer.W.weight.fill_(1.0)
    keys, values = torch.tensor([[[-torch.inf], [0.5]]]), torch.tensor([[[hidden], [2.0]]])
    context, weights = layer(torch.ones(1, 1, 1), keys, values)
    assert context.tolist() == [[[2.0]]] and weights.tolist() == [[[0.0, 1.0]]]


def test_a_projection_of_patches_is_a_strided_convolution():
    shapes = {"images": (2, 4, 6, 3), "W_p": (5, 12), "b_p": (5,)}
    images, W, b = (drawn(name, *shape).double() for name, shape in shapes.items())
    filters = W.reshape(5, 2, 2, 3).permute(0, 3, 1, 2)
    convolved = torch.nn.functional.conv2d(images.permute(0, 3, 1, 2), filters, b, stride=2)
    projected = torch.nn.functional.linear(attention.patches(images, patch_size=2), W, b)
    torch.testing.assert_close(projected, convolved.flatten(2).mT, rtol=1e-13, atol=1e-14)
