import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from regard.attention.kinds import Full, Kind
from regard.attention.linear import Linear
from regard.attention.local import Local, LocalSettings
from regard.attention.routing import Routing, RoutingImplementation
from regard.errors import UserError
from regard.masks import Mask, Packed, Padded
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViTConfig

SMALL = {"width": 16, "heads": 2, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1}


def config(attention: object, **changes: object) -> TransformerConfig:
    return TransformerConfig.base(20, **SMALL | {"attention": attention} | changes)


def kinds(model: Transformer) -> list[Kind]:
    return [getattr(model.get_submodule(name), "kind") for name in ("encoder.0.attention", "decoder.0.attention")]  # noqa: B009


def test_name_of_a_kind_selects_its_defaults() -> None:
    for name in ("full", "local", "linear", "routing"):
        assert config(name) == config({"kind": name})
    assert kinds(Transformer(config("full"))) == [Full(), Full()]
    assert kinds(Transformer(config("local"))) == [Local(128, 128)] * 2


def test_kinds_are_registered_without_importing_their_modules() -> None:
    program = "import regard; [regard.TransformerConfig.base(20, attention=k) for k in ('local', 'linear', 'routing')]"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_settings_may_be_given_as_an_object() -> None:
    settings = LocalSettings(window=(4, 1))
    assert config(settings) == config({"kind": "local", "window": [4, 1]})
    assert config("linear").changed(attention=settings).attention == settings


def test_window_is_one_number_or_two() -> None:
    assert kinds(Transformer(config({"kind": "local", "window": 3}))) == [Local(3, 3)] * 2
    settings = {"kind": "local", "window": [4, 1], "dilation": 2, "global_tokens": 1}
    assert kinds(Transformer(config(settings, qk_scale=0.5))) == [Local(4, 1, 2, 1, scale=0.5)] * 2


def test_settings_are_passed_to_the_kind() -> None:
    (linear, _) = kinds(Transformer(config({"kind": "linear", "features": "random", "size": 24}, qk_scale=0.5)))
    assert isinstance(linear, Linear)
    assert (linear.features, linear.directions.shape, linear.scale) == ("random", (24, 8), 0.5)
    settings = {"kind": "routing", "clusters": 5, "decay": 0.9, "balance": 0.1}
    (routing, _) = kinds(Transformer(config(settings, qk_scale=0.5)))
    assert isinstance(routing, Routing)
    assert routing.centroids.shape == (2, 5, 8)
    assert (routing.decay, routing.balance, routing.scale) == (0.9, 0.1, 0.5)


def test_cross_attention_is_always_full() -> None:
    model = Transformer(config("linear", qk_scale=0.5))
    assert getattr(model.get_submodule("decoder.0.cross"), "kind") == Full(scale=0.5)  # noqa: B009


@pytest.mark.parametrize("name", ["full", "local", "linear", "routing"])
def test_settings_can_be_stored_as_json(name: str) -> None:
    before = config(name)
    assert TransformerConfig.parse(json.loads(json.dumps(before.model_dump())), "config.json") == before


def test_layers_have_separate_clusters() -> None:
    model: nn.Module = Transformer(config("routing"))
    assert len([name for name in model.state_dict() if name.endswith("centroids")]) == 2


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ("lokal", "kind must be one of full, linear, local, routing"),
        ({"window": 3}, "kind must be one of full, linear, local, routing"),
        ({"kind": "local", "wndow": 3}, "attention: local: unknown key wndow; did you mean window?"),
        (
            {"kind": ["local"]},
            "kind must be one of full, linear, local, routing",
        ),
        (
            {"kind": 1},
            "kind must be one of full, linear, local, routing",
        ),
        (["local"], "kind must be one of full, linear, local, routing"),
        ({"kind": "linear", "window": 3}, "linear: window is a key of kind local, not of linear"),
        ({"kind": "local", "window": True}, "window: must be one integer or two, found True"),
        ({"kind": "local", "window": [True, 2]}, "window: must be one integer or two, found [True, 2]"),
        ({"kind": "local", "window": [3, -1]}, "local: window.1: input should be greater than or equal to 0, found -1"),
        ({"kind": "linear", "features": "cos"}, "linear: features: input should be 'elu', 'random' or 'plain'"),
        ({"kind": "linear", "size": 30}, "size is the number of random features; features 'elu' has none"),
        ({"kind": "routing", "clusters": 0}, "routing: clusters: input should be greater than 0, found 0"),
    ],
)
def test_invalid_settings_are_rejected_with_their_name(attention: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        config(attention)
    assert message in str(error.value)


def test_attention_dropout_is_rejected_for_linear_attention() -> None:
    with pytest.raises(UserError, match="attention_dropout must be 0 for linear attention"):
        config("linear", attention_dropout=0.1)


@pytest.mark.parametrize("features", ["elu", "random"])
def test_negative_scale_is_rejected_if_its_square_root_is_needed(features: str) -> None:
    message = f"features {features!r} multiply queries and keys by the square root of qk_scale"
    with pytest.raises(UserError) as error:
        config({"kind": "linear", "features": features}, qk_scale=-0.5)
    assert message in str(error.value)
    with pytest.raises(UserError) as error:
        ViTConfig.micro(3, attention={"kind": "linear", "features": features}, qk_scale=-0.5)
    assert message in str(error.value)


def test_plain_features_support_a_negative_scale() -> None:
    (linear, _) = kinds(Transformer(config({"kind": "linear", "features": "plain"}, qk_scale=-0.5)))
    assert isinstance(linear, Linear)
    assert linear.scale == -0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Local(-1, 0), "local attention: before must be an integer of at least 0, not -1"),
        (lambda: Local(0, 1.5), "local attention: after must be an integer of at least 0, not 1.5"),  # type: ignore[arg-type]
        (lambda: Local(1, 1, dilation=0), "local attention: dilation must be an integer of at least 1, not 0"),
        (
            lambda: Local(1, 1, global_tokens=-2),
            "local attention: global_tokens must be an integer of at least 0, not -2",
        ),
        (
            lambda: Local(1, 1, implementation="x"),
            "implementation must be one of auto, reference, dense, blocks, flash_varlen, not 'x'",
        ),  # type: ignore[arg-type]
        (lambda: Routing(2, 8, 0), "routing attention: clusters must be an integer of at least 1, not 0"),
        (lambda: Routing(2, 8, 4, decay=1.5), "routing attention: decay must be between 0 and 1, not 1.5"),
        (lambda: Routing(2, 8, 4, balance=-0.1), "routing attention: balance must not be negative, found -0.1"),
        (
            lambda: Routing(2, 8, 4, implementation="x"),
            "implementation must be one of auto, reference, dense, clusters, sorted, not 'x'",
        ),  # type: ignore[arg-type]
        (lambda: Linear(8, "relu"), "linear attention: features must be one of elu, random, plain, not 'relu'"),  # type: ignore[arg-type]
        (lambda: Linear(8, "elu", size=5), "size is the number of random features; features 'elu' has none"),
        (lambda: Linear(8, "random", size=0), "linear attention: size must be an integer of at least 1, not 0"),
        (lambda: Linear(8, "elu", scale=-1.0), "must not be negative, found -1"),
        (
            lambda: Linear(8, implementation="x"),
            "implementation must be one of auto, quadratic, chunked, recurrent, kernel, not 'x'",
        ),  # type: ignore[arg-type]
        (
            lambda: Full(implementation="x"),  # type: ignore[arg-type]
            "implementation must be one of auto, reference, sdpa, matmul, decode, padded, flash_varlen, triton_varlen, "
            "not 'x'",
        ),
    ],
)
def test_invalid_arguments_of_a_kind_are_rejected(make: Callable[[], Kind], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def cross(**options: Any) -> Mask:
    return Mask(queries=Packed.of([2, 3]), keys=Packed.of([3, 2]), **options)


DENSE, WINDOW, PADDED = Mask(allowed=torch.ones(5, 5, dtype=torch.bool)), Mask(window=(1, 1)), Padded.of([5])
BLOCKS = "implementation='blocks' supports self-attention only"
VARLEN = (
    "implementation='flash_varlen' supports self-attention without padding, dilation, global tokens or dropout only"
)
CLUSTERS = "implementation='clusters' supports no dense mask and no packed cross-attention"


@pytest.mark.parametrize(
    ("kind", "mask", "message"),
    [
        (Local(1, 1, implementation="blocks"), DENSE, BLOCKS),
        (Local(1, 1, implementation="blocks"), WINDOW, BLOCKS),
        (Local(1, 1, implementation="blocks"), cross(), BLOCKS),
        (Local(1, 1, implementation="blocks"), Mask(causal=True, beam_width=2), BLOCKS),
        (Local(1, 1, implementation="flash_varlen"), DENSE, VARLEN),
        (Local(1, 1, implementation="flash_varlen"), Mask(keys=PADDED), VARLEN),
        (Local(1, 1, 2, implementation="flash_varlen"), Mask(), VARLEN),
        (Local(1, 1, 1, 1, implementation="flash_varlen"), Mask(), VARLEN),
        (Routing(2, 8, 2, implementation="clusters"), DENSE, CLUSTERS),
        (Routing(2, 8, 2, implementation="clusters"), cross(), CLUSTERS),
        (
            Routing(2, 8, 2, implementation="sorted"),
            Mask(),
            "implementation='sorted' supports heads of up to 128 features on a GPU",
        ),
        (
            Linear(8, implementation="kernel"),
            Mask(),
            "implementation='kernel' supports elu and plain features on a GPU",
        ),
    ],
)
def test_inputs_that_a_path_does_not_support_are_rejected(kind: Kind, mask: Mask, message: str) -> None:
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(q, q, q, mask)


@pytest.mark.parametrize(
    "kind", [Local(1, 1, implementation="blocks"), Local(1, 1, implementation="flash_varlen")], ids=str
)
def test_paths_for_self_attention_reject_a_cache(kind: Kind) -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    with pytest.raises(ValueError, match="supports self-attention"):
        kind(q, k, k, Mask(causal=True))


@pytest.mark.parametrize("sizes", [(0, 4, 4), (2, 0, 0)], ids=["no rows", "no tokens"])
@pytest.mark.parametrize(
    "kind", [Local(1, 1, implementation="blocks"), Local(1, 1, 2, 1, implementation="blocks")], ids=str
)
def test_blocks_may_be_empty(kind: Kind, sizes: tuple[int, int, int]) -> None:
    B, T, S = sizes
    q, k = torch.randn(B, 2, T, 8), torch.randn(B, 2, S, 8)
    assert kind(q, k, k, Mask(causal=True)).shape == q.shape


@pytest.mark.parametrize("sizes", [(0, 4, 4), (2, 0, 4), (2, 70, 0)], ids=["no rows", "no queries", "no keys"])
@pytest.mark.parametrize("implementation", ["auto", "clusters"])
def test_clusters_may_be_empty(implementation: RoutingImplementation, sizes: tuple[int, int, int]) -> None:
    B, T, S = sizes
    q, k = torch.randn(B, 2, T, 8), torch.randn(B, 2, S, 8)
    context = Routing(2, 8, 2, implementation=implementation)(q, k, k, Mask())
    assert context.shape == q.shape
    assert S > 0 or not context.any()
