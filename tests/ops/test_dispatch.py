"""The fast traversal of modules agrees with PyTorch's own."""

import torch
from torch import nn

from regard.decoding.cuda_graph.capture import weight_addresses
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops.dispatch import list_modules


def shared_modules() -> nn.Module:
    """Return a model with a shared module, a missing module, and a module without parameters."""
    shared = nn.Linear(2, 3)
    model = nn.ModuleDict({"a": nn.Sequential(shared, nn.ReLU()), "b": nn.Sequential(shared, nn.BatchNorm1d(3))})
    model.register_module("missing", None)
    model.register_parameter("none", None)
    return model


def test_all_modules_and_tensors_are_found() -> None:
    for model in (shared_modules(), Transformer(TransformerConfig.tiny(11))):
        assert list_modules(model)[0] is model
        assert {*list_modules(model)} == {*model.modules()}
        assert {*weight_addresses(model)} == {x.data_ptr() for x in (*model.parameters(), *model.buffers())}


def test_modules_added_later_are_found() -> None:
    model = shared_modules()
    list_modules(model)
    model.add_module("later", nn.Sequential(nn.Linear(1, 1)))
    model.register_buffer("number", torch.ones(1))
    assert {*list_modules(model)} == {*model.modules()}
    assert {*weight_addresses(model)} == {x.data_ptr() for x in (*model.parameters(), *model.buffers())}
