import json

import pytest
from torch import nn

from regard.attention import Full, Kind, Linear, Local, Routing
from regard.errors import UserError
from regard.models.transformer import Transformer, TransformerConfig

SMALL = {"width": 16, "heads": 2, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1}


def config(attention: object, **changes: object) -> TransformerConfig:
    return TransformerConfig.base(20, **SMALL | {"attention": attention} | changes)


def kinds(model: Transformer) -> list[Kind]:
    return [getattr(model.get_submodule(name), "kind") for name in ("encoder.0.attention", "decoder.0.attention")]  # noqa: B009


def test_a_name_alone_takes_the_defaults() -> None:
    for name in ("full", "local", "linear", "routing"):
        assert config(name) == config({"kind": name})
    assert kinds(Transformer(config("full"))) == [Full(), Full()]
    assert kinds(Transformer(config("local"))) == [Local(128, 128)] * 2


def test_a_window_is_one_number_or_two() -> None:
    assert kinds(Transformer(config({"kind": "local", "window": 3}))) == [Local(3, 3)] * 2
    settings = {"kind": "local", "window": [4, 1], "dilation": 2, "everyone": 1}
    assert kinds(Transformer(config(settings, qk_scale=0.5))) == [Local(4, 1, 2, 1, scale=0.5)] * 2


def test_every_key_reaches_its_kind() -> None:
    (linear, _) = kinds(Transformer(config({"kind": "linear", "features": "random", "size": 24}, qk_scale=0.5)))
    assert isinstance(linear, Linear)
    assert (linear.features, linear.directions.shape, linear.scale) == ("random", (24, 8), 0.5)
    settings = {"kind": "routing", "clusters": 5, "decay": 0.9, "balance": 0.1}
    (routing, _) = kinds(Transformer(config(settings, qk_scale=0.5)))
    assert isinstance(routing, Routing)
    assert routing.centroids.shape == (2, 5, 8)
    assert (routing.decay, routing.balance, routing.scale) == (0.9, 0.1, 0.5)


def test_attention_to_the_source_stays_full() -> None:
    model = Transformer(config("linear", qk_scale=0.5))
    assert getattr(model.get_submodule("decoder.0.cross"), "kind") == Full(scale=0.5)  # noqa: B009


@pytest.mark.parametrize("name", ["full", "local", "linear", "routing"])
def test_settings_survive_json(name: str) -> None:
    before = config(name)
    assert TransformerConfig.parse(json.loads(json.dumps(before.model_dump())), "config.json") == before


def test_models_share_no_learned_clusters() -> None:
    model: nn.Module = Transformer(config("routing"))
    assert len([name for name in model.state_dict() if name.endswith("centroids")]) == 2


@pytest.mark.parametrize(
    ("attention", "sentence"),
    [
        ("lokal", "kind must be one of full, local, linear, routing, found 'lokal'"),
        ({"window": 3}, "kind must be one of full, local, linear, routing"),
        ({"kind": "local", "wndow": 3}, "attention: local: unknown key wndow; did you mean window?"),
        ({"kind": "local", "window": [3, -1]}, "local: window.1: input should be greater than or equal to 0, found -1"),
        ({"kind": "linear", "features": "cos"}, "linear: features: input should be 'elu', 'random' or 'plain'"),
        ({"kind": "linear", "size": 30}, "size is the number of random features; features 'elu' has none"),
        ({"kind": "routing", "clusters": 0}, "routing: clusters: input should be greater than 0, found 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(attention: object, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        config(attention)
    assert sentence in str(refused.value)


def test_dropout_of_weights_that_are_never_made_is_refused_at_the_door() -> None:
    with pytest.raises(UserError, match="attention_dropout drops weights, which linear attention never makes"):
        config("linear", attention_dropout=0.1)
