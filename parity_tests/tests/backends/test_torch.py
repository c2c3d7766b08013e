"""The PyTorch backend under PyTorch's own ways: modules, state dicts, modes, autograd, compilation."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from attention_core.draws import uniform
from attention_core.errors import OptionError
from backends import torch as attention
from backends.torch import arrays, runtime
from backends.torch import attention as attention_file
from backends.torch.blocked import additive, blocks, choice, decoder_steps
from parity_tests.cases.suite import all_cases, select
from parity_tests.cli.main import main
from parity_tests.tests.backends import magnitudes
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


def test_inductor_compiles_a_layer_with_closed_rows():
    torch._dynamo.reset()
    layer = attention.DotProductAttention()
    arguments = (drawn("q", 2, 5, 4), drawn("k", 2, 7, 4), drawn("v", 2, 7, 6), torch.tensor([0, 6]))
    for compiled, eager in zip(torch.compile(layer, fullgraph=True)(*arguments), layer(*arguments), strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
        assert (compiled[0] == 0).all()


def test_greedy_decoding_takes_no_gradient_and_stops_early():
    (case,) = select(all_cases(), "BahdanauDecoder-greedy")
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


def test_a_rule_makes_its_mask_on_the_device_that_is_asked_for():
    options = {
        "causal_mask": {},
        "window_mask": {"left": 1, "right": 1},
        "block_mask": {"size": 2},
        "stride_mask": {"stride": 2},
    }
    for name, own in options.items():
        made = getattr(attention, name)(2, 3, **own, device="meta")
        assert made.device.type == "meta" and made.shape == (1, 2, 3)


def test_the_target_of_the_fast_path_takes_it(monkeypatch: pytest.MonkeyPatch):
    (case,) = (own for own in all_cases() if own.id == "MultiHeadAttention-mask")
    inputs, parameters = ({name: torch.tensor(array) for name, array in own.items()} for own in case.at("float32"))
    taken, plain = [], torch._native_multi_head_attention
    monkeypatch.setattr(torch, "_native_multi_head_attention", lambda *given: taken.append(1) or plain(*given))
    arrays = {name: inputs[name] for name in ("queries", "keys", "values", "mask")}
    third_party.multihead_attention_fast.MultiHeadAttention(parameters, **arrays, num_heads=3)
    assert taken
    third_party.multihead_attention_eval.MultiHeadAttention(parameters, **arrays, num_heads=3)
    assert len(taken) == 1


# ------------------------------------------------------------------------------------------------ the pages


def test_the_code_of_the_readme_prints_what_stands_below_it():
    _, code, _, printed, *_ = (ROOT / "README.md").read_text(encoding="utf-8").split("```")
    command = [sys.executable, "-c", code.removeprefix("python")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said == printed.removeprefix("\n")


def test_the_target_of_the_page_has_the_two_defects_that_it_is_said_to_have(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    source = page.partition("# mine.py\n")[2].partition("```")[0]
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["check", "mine.py", "--dtype", "float64", "--json", "out.json"])
    assert result.exit_code == 1, result.output
    cells = json.loads((tmp_path / "out.json").read_text())["cells"]
    drawn = [cell for cell in cells if "-cover_" in cell["case"] or "-drawn_" in cell["case"]]
    assert {cell["check"] for cell in drawn if cell["status"] == "fail"} == {"nan"}
    red = {cell["case"] for cell in cells if cell["status"] == "fail" and cell not in drawn}
    # Rows of one length below 1 and one mask that is closed: "lens_and_mask", "heads_mask".
    shapes = ("closed", "infinite", "hidden_nan", "hidden_inf", "lens_and_mask", "heads_mask")
    assert red == {f"{name}-{case}" for name in ("masked_softmax", "AdditiveAttention") for case in shapes} & {
        cell["case"] for cell in cells
    } - {"masked_softmax-hidden_nan", "masked_softmax-hidden_inf"}
    assert "looks like  masked_softmax: A fully masked row is NaN." in result.output


# --------------------------------------------------------------------------------------- additive scores in blocks


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of which every test has several, with a last one that is smaller."""
    monkeypatch.setattr(additive, "BY_FEATURES", 2 * 7)
    monkeypatch.setattr(additive, "BY_ROWS", 2 * 7 * 40)
    yield
    choice.set_path(None)


def plain_score(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    return torch.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v


def scored(queries: int = 5, scale: float = 1.0) -> list[torch.Tensor]:
    """Queries, keys and w_v of 3 sequences, 7 keys and 40 features."""
    shapes = {"q": (3, queries, 40), "k": (3, 7, 40), "w": (40,)}
    return [torch.tensor(scale * uniform(name, shape)).requires_grad_() for name, shape in shapes.items()]


def gradients(function: Callable[..., torch.Tensor], arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    scores = function(*arguments)
    cotangent = torch.tensor(uniform("g", tuple(scores.shape)))
    return [scores, *torch.autograd.grad(scores, arguments, cotangent)]


@pytest.mark.parametrize("path", ["blocked", None], ids=["features", "rows"])
@pytest.mark.parametrize("scale", [1.0, 60.0, 700.0])
@pytest.mark.parametrize("queries", [1, 5])
def test_blocks_have_the_numbers_of_the_plain_formula(small_blocks, queries: int, scale: float, path: str | None):
    choice.set_path(path)  # small sizes go by features only where blocks are forced
    arguments = scored(queries, scale)
    found, expected = (gradients(f, arguments) for f in (additive.blocked_additive_score, plain_score))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * float(other.detach().abs().max()))


@pytest.mark.parametrize("path", ["blocked", None], ids=["features", "rows"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", magnitudes.CASES)
def test_blocks_are_right_at_every_magnitude(small_blocks, name: str, dtype: str, path: str | None):
    choice.set_path(path)
    arrays = [own.astype(dtype) for own in (*magnitudes.CASES[name], magnitudes.cotangent())]
    *arguments, cotangent = (torch.tensor(own) for own in arrays)
    scores = additive.blocked_additive_score(*(own.requires_grad_() for own in arguments))
    tensors = (scores, *torch.autograd.grad(scores, arguments, cotangent))
    found, expected = [own.detach().numpy() for own in tensors], magnitudes.exact(*arrays)
    assert max(magnitudes.errors(name, found, expected)) < 1.0
    if name in magnitudes.OF_ONE_SIGN:
        assert magnitudes.own_error(found[0], expected[0]) < magnitudes.OWN


@pytest.mark.parametrize("path", ["blocked", None], ids=["features", "rows"])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_a_w_v_that_is_not_finite_gives_the_scores_of_the_plain_formula(small_blocks, number: float, path: str | None):
    choice.set_path(path)
    queries, keys, w_v = (tensor.detach() for tensor in scored())
    w_v[3] = number
    found = additive.blocked_additive_score(queries, keys, w_v)
    torch.testing.assert_close(found, plain_score(queries, keys, w_v), equal_nan=True)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e-3, 1.0])
def test_the_scores_of_a_step_keep_the_digits_of_a_small_tanh(scale: float):
    center = uniform("center", (3, 1, 40))
    queries, keys, w_v = (
        scale * uniform("q", (3, 1, 40)) + center,
        scale * uniform("k", (3, 7, 40)) - center,
        drawn("w", 40),
    )
    queries, keys = (torch.tensor(own, dtype=torch.float32) for own in (queries, keys))
    scores, expected = (
        torch.empty(3, 7),
        magnitudes.exact(*(own.numpy() for own in (queries, keys, w_v)), np.ones((3, 1, 7))),
    )
    features = decoder_steps.Features(keys, w_v)
    features.score(queries[:, 0], scores)
    found = [torch.zeros_like(own) for own in (queries[:, 0], keys, w_v)]
    features.gradients(queries[:, 0], torch.ones(3, 7), *found)
    found[1] *= w_v
    arrays = [own.numpy() for own in (scores[:, None], found[0][:, None], *found[1:])]
    assert not features.exact and max(magnitudes.errors("", arrays, expected)) < 1.0


@pytest.mark.parametrize("path", ["blocked", None], ids=["features", "rows"])
def test_a_nan_in_a_key_reaches_the_scores_of_that_key_alone(small_blocks, path: str | None):
    choice.set_path(path)
    queries, keys, w_v = (tensor.detach() for tensor in scored())
    keys[1, 3, 2] = torch.nan
    found = additive.blocked_additive_score(queries, keys, w_v)
    torch.testing.assert_close(found, plain_score(queries, keys, w_v), equal_nan=True)
    assert found.isnan().sum() == 5


@pytest.mark.parametrize("path", ["blocked", "plain"])
def test_a_path_can_be_forced(small_blocks, path: str):
    choice.set_path(path)
    for size in (1, 10**6):
        like = torch.empty(1, size, 4, device="meta")
        assert choice.use_blocks(like, like, additive.ADDITIVE_MIN_ELEMENTS) == (path == "blocked")
    choice.set_path(None)
    assert not choice.use_blocks(like[:, :1], like[:, :1], 2**19) and choice.use_blocks(like, like, 2**19)


def test_another_path_is_refused(small_blocks):
    with pytest.raises(OptionError, match="path is 'fast', expected 'blocked' or 'plain', or None"):
        choice.set_path("fast")


def test_blocks_work_under_vmap_and_grad_of_torch_func(small_blocks):
    choice.set_path("blocked")
    queries, keys, w_v = (tensor.detach() for tensor in scored())
    loss = lambda score: lambda q, k, w: score(q[None], k[None], w).square().sum()  # noqa: E731
    for transform in (lambda f: f, lambda f: torch.func.grad(f, argnums=(0, 1, 2))):
        found, expected = (
            torch.func.vmap(transform(loss(score)), in_dims=(0, 0, None))(queries, keys, w_v)
            for score in (attention.additive_score, plain_score)
        )
        torch.testing.assert_close(found, expected)


def test_blocks_are_one_graph_for_torch_compile(small_blocks):
    torch._dynamo.reset()
    choice.set_path("blocked")
    compiled = torch.compile(attention.additive_score, backend="aot_eager", fullgraph=True)
    for one, other in zip(gradients(compiled, scored()), gradients(plain_score, scored()), strict=True):
        torch.testing.assert_close(one, other)


def test_a_second_derivative_through_blocks_is_refused(small_blocks):
    arguments = scored()
    scores = additive.blocked_additive_score(*arguments)
    first = torch.autograd.grad(scores.sum(), arguments, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative is known"):
        first[0].sum().backward()


def test_blocks_are_an_operator_as_pytorch_checks_them(small_blocks):
    choice.set_path("blocked")
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(additive.score_node, tuple(tensor.detach() for tensor in scored()), test_utils=checks)
    given = tuple(tensor.detach() for tensor in (torch.ones(3, 5, 7, dtype=torch.float64), *scored()))
    torch.library.opcheck(additive.gradients_node, given, test_utils=checks)


# -------------------------------------------------------------------------------- a decoder's steps as one function


@pytest.fixture
def short_blocks(monkeypatch):
    """Blocks of two sequences, of three."""
    monkeypatch.setattr(decoder_steps, "BY_STEPS", 2 * 7 * 8)
    yield
    choice.set_path(None)


DECODING = {
    "plain": {},
    "dropout": {
        "dropout_mask": 2.0 * (drawn("d", 1, 3, 4, 5) > 0),
        "attention_dropout_mask": 2.0 * (drawn("a", 3, 4, 7) > 0),
    },
    "closed": {"mask": torch.tensor([True, False, True])[:, None, None]},
}


def decoded(decoder: torch.nn.Module, path: str, masks: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The outputs on a path, and the gradients of inputs and parameters."""
    choice.set_path(path)
    tokens, memory, state, valid_lens = ARGUMENTS["BahdanauDecoder"]
    given = [memory.double().requires_grad_(), state.double().requires_grad_()]
    masks = {name: mask.double() if mask.is_floating_point() else mask for name, mask in masks.items()}
    outputs = decoder(tokens, *given, valid_lens, **masks)
    loss = sum((output * torch.tensor(uniform("c", tuple(output.shape)))).sum() for output in outputs)
    return [*outputs, *torch.autograd.grad(loss, [*given, *decoder.parameters()])]


@pytest.mark.parametrize("masks", DECODING.values(), ids=DECODING)
@pytest.mark.parametrize("scale", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("readout", ["dense", "maxout"])
def test_steps_as_one_function_have_the_numbers_of_the_loop(short_blocks, readout: str, scale: float, masks):
    decoder = MAKERS["BahdanauDecoder"](readout=readout, dtype=torch.float64)
    with torch.no_grad():
        decoder.attention.W_q.weight *= scale  # from 160 on, keys have no exponentials; queries are clipped
        decoder.attention.W_k.weight *= scale
    for one, other in zip(*(decoded(decoder, path, masks) for path in ("blocked", "plain")), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11 * max(1.0, float(other.detach().abs().max())))


def test_steps_keep_nothing_without_gradients(short_blocks, monkeypatch):
    choice.set_path("blocked")
    found = []
    apply = decoder_steps.Steps.apply
    monkeypatch.setattr(decoder_steps.Steps, "apply", lambda *given: found.append(apply(*given)) or found[-1])
    decoder = MAKERS["BahdanauDecoder"]()
    expected = decoder(*ARGUMENTS["BahdanauDecoder"])
    with torch.no_grad():
        outputs = decoder(*ARGUMENTS["BahdanauDecoder"])
    assert [len(own[6]) for own in found] == [4, 1]
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_steps_differ_where_a_mask_does(short_blocks):
    choice.set_path("blocked")
    decoder, (tokens, memory, state, _) = MAKERS["BahdanauDecoder"](), ARGUMENTS["BahdanauDecoder"]
    one, other = (
        decoder.prepare(memory, mask=torch.ones(1, 1, 7) > 0),
        decoder.prepare(memory, mask=torch.ones(1, 4, 7) > 0),
    )
    assert decoder_steps.takes_steps(tokens, state, *one, None, None)
    assert not decoder_steps.takes_steps(tokens, state, *other, None, None)
    assert not decoder_steps.takes_steps(tokens, state, *one, None, torch.ones(3, 4, 7, requires_grad=True))


def test_a_second_derivative_through_steps_is_refused(short_blocks):
    choice.set_path("blocked")
    decoder, (tokens, memory, state, _) = MAKERS["BahdanauDecoder"](), ARGUMENTS["BahdanauDecoder"]
    memory = memory.clone().requires_grad_()
    (first,) = torch.autograd.grad(decoder(tokens, memory, state)[0].sum(), memory, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative is known where its steps are one function"):
        first.sum().backward()


def test_steps_work_under_vmap_and_grad_of_torch_func(short_blocks):
    decoder, (tokens, memory, state, _) = MAKERS["BahdanauDecoder"](), ARGUMENTS["BahdanauDecoder"]
    loss = lambda own: decoder(tokens, own, state)[0].square().sum()  # noqa: E731
    memories = torch.stack([memory, 2 * memory])
    choice.set_path("blocked")
    found = torch.func.vmap(torch.func.grad(loss))(memories)
    choice.set_path("plain")  # whose cell torch.func does not map
    torch.testing.assert_close(found, torch.stack([torch.func.grad(loss)(own) for own in memories]))


# --------------------------------------------------------------------------- attention by inner products, in blocks


@pytest.fixture
def few_scores(monkeypatch):
    """Blocks of two rows, of five."""
    monkeypatch.setattr(blocks, "BY_SCORES", 2 * 7)
    yield
    choice.set_path(None)


def attending(heads: bool = False) -> list[torch.Tensor]:
    """Queries, keys and values of 3 sequences, with 2 heads or without."""
    lead = (3, 2) if heads else (3,)
    shapes = {"q": (*lead, 5, 4), "k": (*lead, 7, 4), "v": (*lead, 7, 6)}
    return [torch.tensor(uniform(name, shape)).requires_grad_() for name, shape in shapes.items()]


HIDING = {
    "none": None,
    "padding": (torch.arange(7) < torch.tensor([7, 0, 4])[:, None])[:, None],
    "causal": (torch.arange(7) <= torch.arange(5)[:, None])[None],
    "heads": torch.tensor(uniform("hidden", (3, 2, 5, 7))) > 0,
}


def attended(
    path: str, arguments: list[torch.Tensor], mask: torch.Tensor | None, need_weights: bool
) -> list[torch.Tensor]:
    """The outputs on a path, and their gradients."""
    choice.set_path(path)
    layer = attention.DotProductAttention()
    outputs = [own for own in layer(*arguments, mask=mask, need_weights=need_weights) if own is not None]
    loss = sum((own * torch.tensor(uniform("c", tuple(own.shape)))).sum() for own in outputs)
    return [*outputs, *torch.autograd.grad(loss, arguments)]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("hiding", HIDING)
def test_inner_products_in_blocks_have_the_numbers_of_the_plain_formula(few_scores, hiding: str, need_weights: bool):
    arguments = attending(heads=hiding == "heads")
    both = (attended(path, arguments, HIDING[hiding], need_weights) for path in ("blocked", "plain"))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("hiding", HIDING)
def test_a_context_without_gradients_is_the_same(few_scores, hiding: str):
    arguments = attending(heads=hiding == "heads")
    context = attended("blocked", arguments, HIDING[hiding], False)[0]
    with torch.no_grad():
        found, weights = attention.DotProductAttention()(*arguments, mask=HIDING[hiding], need_weights=False)
    assert weights is None
    torch.testing.assert_close(found, context, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("path", ["blocked", "plain"])
@pytest.mark.parametrize(
    "layer",
    [
        attention.DotProductAttention(dropout=0.5),
        attention.GeneralAttention(4, 4, dtype=torch.float64),
        attention.CosineAttention(),
        attention.LocalAttention(4, 4, 2, dtype=torch.float64),
        attention.HardAttention(4, 4, score="general", dtype=torch.float64),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_context_alone_comes_without_weights(few_scores, layer: torch.nn.Module, path: str):
    choice.set_path(path)
    layer.eval()
    context, weights = layer(*attending(), need_weights=False)
    assert weights is None
    torch.testing.assert_close(context, layer(*attending())[0])


@pytest.mark.parametrize("need_weights", [False, True])
def test_an_infinite_score_is_as_in_the_plain_formula(few_scores, need_weights: bool):
    queries, keys, values = (own.detach() for own in attending())
    queries, keys = queries.abs(), keys.clone()
    keys[:, 3], values[:, 3] = -torch.inf, torch.nan
    arguments = [own.requires_grad_() for own in (queries, keys, values)]
    both = [attended(path, arguments, None, need_weights) for path in ("blocked", "plain")]
    assert both[0][0].isfinite().all()
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_inner_products_have_no_second_derivative_in_blocks(few_scores):
    choice.set_path("blocked")
    arguments = attending()
    context, _ = attention.DotProductAttention()(*arguments, need_weights=False)
    (first,) = torch.autograd.grad(context.sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative is known"):
        first.sum().backward()


def test_inner_products_work_under_vmap_and_grad_of_torch_func(few_scores):
    layer, (queries, keys, values) = attention.DotProductAttention(), (own.detach() for own in attending())
    loss = lambda q, k, v: layer(q[None], k[None], v[None], need_weights=False)[0].square().sum()  # noqa: E731
    results = []
    for path in ("blocked", "plain"):
        choice.set_path(path)
        results.append(torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(queries, keys, values))
    torch.testing.assert_close(*results)


def test_inner_products_are_one_graph_for_torch_compile(few_scores):
    torch._dynamo.reset()
    choice.set_path("blocked")
    layer = attention.DotProductAttention()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    mask = HIDING["padding"]
    for need_weights in (False, True):
        found, expected = (own(*attending(), mask=mask, need_weights=need_weights) for own in (compiled, layer))
        torch.testing.assert_close(found[0], expected[0])
        assert (found[1] is None) == (not need_weights)


# --------------------------------------------------------------------------- attention by additive scores, in blocks


@pytest.fixture
def two_rows(small_blocks, few_scores):
    """Blocks of two rows, of five, for weights and for scores."""


def additive_arguments(heads: bool = False, w_v: float = 1.0) -> list[torch.Tensor]:
    """Projected queries and keys, values and w_v, of 3 sequences, with 2 heads or without."""
    return [*attending(heads), torch.tensor(w_v * uniform("w", (4,))).requires_grad_()]


def additive_context(
    function: Callable[..., torch.Tensor], arguments: list[torch.Tensor], mask: torch.Tensor | None
) -> list[torch.Tensor]:
    """The context and its gradients."""
    queries, keys, values, w_v = arguments
    context = function(queries, keys, values, mask, w_v)
    cotangent = torch.tensor(uniform("c", tuple(context.shape))).bfloat16()  # numbers that every dtype holds
    return [context, *torch.autograd.grad(context, arguments, cotangent.to(context.dtype))]


def plain_context(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
) -> torch.Tensor:
    return attention.attention_pooling(plain_score(queries, keys, w_v), values, mask=mask)[0]


@pytest.mark.parametrize("scores", [2 * 7, 2**18], ids=["rows", "sequences"])
@pytest.mark.parametrize("path", ["blocked", None], ids=["features", "rows"])
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("hiding", HIDING)
def test_an_additive_context_has_the_numbers_of_the_plain_formula(
    two_rows, monkeypatch, hiding: str, heads: bool, path: str | None, scores: int
):
    monkeypatch.setattr(blocks, "BY_SCORES", scores)
    choice.set_path(path)
    arguments, mask = additive_arguments(heads or hiding == "heads"), HIDING[hiding]
    if mask is not None and arguments[0].ndim > mask.ndim:
        mask = mask[:, None]
    functions = additive.blocked_additive_attention, plain_context
    for one, other in zip(*(additive_context(own, arguments, mask) for own in functions), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_additive_context_is_computed_in_float32(two_rows, dtype: torch.dtype):
    arguments = [own.detach().to(dtype).requires_grad_() for own in additive_arguments()]
    precise = [own.detach().float().requires_grad_() for own in arguments]
    found, expected = (additive_context(additive.blocked_additive_attention, own, None) for own in (arguments, precise))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.to(dtype), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [3, 6], ids=["between", "padding"])
def test_what_is_hidden_from_all_has_no_influence_on_an_additive_context(two_rows, place: int, number: float):
    mask = (torch.arange(7) != place) & HIDING["causal"].flip(1)
    arguments = additive_arguments()
    expected = additive_context(additive.blocked_additive_attention, arguments, mask)
    with torch.no_grad():
        arguments[1][:, place], arguments[2][:, place] = number, number
    found = additive_context(additive.blocked_additive_attention, arguments, mask)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def test_a_nan_in_the_gradient_of_an_additive_context_does_not_reach_what_is_hidden(two_rows):
    arguments, mask = additive_arguments(), torch.arange(7) != 3
    cotangent = torch.ones(3, 5, 6, dtype=torch.float64)
    cotangent[1, 2] = torch.nan
    results = []
    for function in (additive.blocked_additive_attention, plain_context):
        queries, keys, values, w_v = arguments
        context = function(queries, keys, values, mask.expand(1, 1, 7), w_v)
        results.append(torch.autograd.grad(context, (keys, values), cotangent))
        assert all((own.isnan().any(dim=(0, 2)) == mask).all() for own in results[-1])
    torch.testing.assert_close(*results, equal_nan=True)


def test_a_nan_in_a_query_spoils_its_own_row_of_an_additive_context(two_rows):
    queries, keys, values, w_v = (own.detach() for own in additive_arguments())
    queries[1, 3, 2] = torch.nan
    found = additive.blocked_additive_attention(queries, keys, values, HIDING["padding"][[0, 2, 0]], w_v)
    assert found.isnan().any(dim=-1).nonzero().tolist() == [[1, 3]]


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_an_additive_score_that_is_not_finite_is_as_in_the_plain_formula(two_rows, number: float):
    arguments = additive_arguments()
    with torch.no_grad():
        arguments[0].abs_(), arguments[1].abs_()  # by -inf in w_v all scores are -inf, and all rows closed
        arguments[3][1] = number
    functions = additive.blocked_additive_attention, plain_context
    for one, other in zip(*(additive_context(own, arguments, None) for own in functions), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("sizes", [(0, 5, 7, 4, 6), (3, 0, 7, 4, 6), (3, 5, 0, 4, 6), (3, 5, 7, 0, 6), (3, 5, 7, 4, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_an_additive_context_of_empty_axes(two_rows, sizes: tuple[int, ...], masked: bool):
    batch, queries, keys, hidden, features = sizes
    shapes = (batch, queries, hidden), (batch, keys, hidden), (batch, keys, features), (hidden,)
    arguments = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    mask = (torch.arange(keys) < 4).expand(batch, 1, keys) if masked else None
    functions = additive.blocked_additive_attention, plain_context
    for one, other in zip(*(additive_context(own, arguments, mask) for own in functions), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("mask", [None, HIDING["causal"]], ids=["open", "causal"])
def test_an_additive_context_keeps_its_arguments_alone(two_rows, mask: torch.Tensor | None):
    arguments, kept = additive_arguments(), []
    queries, keys, values, w_v = arguments
    with torch.autograd.graph.saved_tensors_hooks(lambda own: kept.append(own) or own, lambda own: own):
        additive.blocked_additive_attention(queries, keys, values, mask, w_v)
    given = {own.data_ptr() for own in (*arguments, mask) if own is not None}
    assert {own.data_ptr() for own in kept} == given


@pytest.mark.parametrize(
    "layer",
    [
        attention.AdditiveAttention(4, 4, 5, dtype=torch.float64),
        attention.ConcatAttention(4, 4, 5, dtype=torch.float64),
        attention.MultiHeadAttention(4, 2, value_size=6, score="additive", dtype=torch.float64),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_takes_the_additive_context_where_it_can(two_rows, monkeypatch, layer: torch.nn.Module):
    calls: list[tuple[torch.Tensor, ...]] = []
    own = additive.blocked_additive_attention
    monkeypatch.setattr(attention_file, "blocked_additive_attention", lambda *given: calls.append(given) or own(*given))
    arguments, dropped = attending(), layer.specification.name == "MultiHeadAttention"
    mask = torch.ones((3, 2, 5, 7) if dropped else (3, 5, 7), dtype=torch.float64)
    results = []
    for path, options, taken in (
        ("blocked", {"need_weights": False}, True),
        ("plain", {"need_weights": False}, False),
        ("blocked", {}, False),
        ("blocked", {"need_weights": False, "dropout_mask": mask}, False),
    ):
        choice.set_path(path)
        calls.clear()
        context, weights = layer(*arguments, mask=HIDING["padding"], **options)
        assert bool(calls) == taken and (weights is None) == ("need_weights" in options)
        cotangent = torch.tensor(uniform("c", tuple(context.shape)))
        results.append([context, *torch.autograd.grad(context, [*arguments, *layer.parameters()], cotangent)])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])


def test_an_additive_context_has_no_second_derivative_in_blocks(two_rows):
    queries, keys, values, w_v = additive_arguments()
    context = additive.blocked_additive_attention(queries, keys, values, None, w_v)
    (first,) = torch.autograd.grad(context.sum(), queries, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative is known"):
        first.sum().backward()


def test_an_additive_context_works_under_vmap_and_grad_of_torch_func(two_rows):
    queries, keys, values, w_v = (own.detach() for own in additive_arguments())
    results = []
    for function in (additive.blocked_additive_attention, plain_context):
        loss = lambda q, k, v, m, w: function(q[None], k[None], v[None], m[None], w).square().sum()  # noqa: B023, E731
        mapped = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 4)), in_dims=(0, 0, 0, 0, None))
        results.append(mapped(queries, keys, values, HIDING["padding"], w_v))
    torch.testing.assert_close(*results)


def test_an_additive_context_is_one_graph_for_torch_compile(two_rows):
    torch._dynamo.reset()
    choice.set_path("blocked")
    layer = attention.AdditiveAttention(4, 4, 5, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found, expected = (own(*attending(), mask=HIDING["padding"], need_weights=False)[0] for own in (compiled, layer))
    torch.testing.assert_close(found, expected)
