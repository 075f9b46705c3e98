"""No work for nothing: what a training step computes, counted in ways that hold without a GPU."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest
import torch

from randslot.training.data import ColumnPreprocessor
from randslot.training.loss import Loss
from randslot.training.recipe import make_recipe
from randslot.training.train import TrainingRun
from support.double import InDouble, make_double
from support.models import language_model, make, noise
from support.pairs import small

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}  # dropout would draw from the generator of slots
QUERIES = ["tax", "sales in 2023", "staff", "steel"]
SIZES = [(64, 64), (128, 64), (256, 96), (96, 64)]


@dataclass
class Counts:
    """What went through a model: looks of its tower, those that leave a graph, and positions of its passes."""

    looks: int = 0
    looks_with_graph: int = 0
    positions: list[tuple[int, int]] = field(default_factory=list)  # rows and columns of each pass


def count(model) -> Counts:
    counts = Counts()

    def see(module, args, kwargs, output) -> None:
        counts.looks += 1
        counts.looks_with_graph += output.last_hidden_state.requires_grad

    def run(module, args, kwargs, output) -> None:
        counts.positions.append(tuple(kwargs["inputs_embeds"].shape[:2]))

    model.backbone.vision_parts[0].register_forward_hook(see, with_kwargs=True)
    language_model(model).register_forward_hook(run, with_kwargs=True)
    return counts


def step(model, gradient_cache: bool = True, micro_batch: int = 1) -> float:
    loss = Loss(
        model,
        temperature=0.5,
        batch=len(QUERIES),
        micro_batch=micro_batch,
        mask_repeats=False,
        gradient_cache=gradient_cache,
    )
    pages = [noise(*size, number) for number, size in enumerate(SIZES)]
    value = loss([model.preprocess(QUERIES, task="query"), model.preprocess(pages, task="document")])
    value.backward()
    return value.item()


def page_widths(model) -> list[int]:
    """The positions of each page, and its slots."""
    pages = [noise(*size, number) for number, size in enumerate(SIZES)]
    return [model.preprocess([page], task="document")["input_ids"].shape[1] + 3 for page in pages]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_frozen_tower_sees_each_page_once_and_is_not_gone_back_through(checkpointing):
    model = make("qwen3-vl", lora=LORA).train()
    if checkpointing:
        model.backbone.checkpoint_layers()
    counts = count(model)
    step(model)
    assert counts.looks == len(SIZES)
    assert counts.looks_with_graph == 0


def test_a_tower_that_is_trained_sees_each_page_in_both_passes():
    model = make("qwen3-vl").train()
    counts = count(model)
    step(model)
    assert counts.looks == 2 * len(SIZES)
    assert counts.looks_with_graph == len(SIZES)


def test_a_micro_batch_has_no_padding_of_other_pages():
    model = make("qwen3-vl", lora=LORA).train()
    counts = count(model)
    step(model)
    widths = page_widths(model)
    assert len(set(widths)) > 1
    passes = [shape for shape in counts.positions if shape[0] == 1]
    assert [columns for _, columns in passes] == 2 * widths


@pytest.mark.parametrize("slots", ["random", "feedback", "tokens"])
def test_a_gradient_cache_and_padding_change_no_gradient(vision_family, slots):
    """In double precision: in single precision rounding alone makes 2e-6 of feedback and of all tokens."""
    ways = {"cached": (True, 1), "pages alone": (False, 1), "all pages, padded": (False, 0)}
    values, gradients, looks = {}, {}, {}
    for way, (gradient_cache, micro_batch) in ways.items():
        model = make(vision_family, slots=slots, lora=LORA).train()
        model.encoder.slots.eval()  # random slots by content, so that all ways draw the same
        counts = count(model)
        with InDouble():
            values[way] = step(make_double(model), gradient_cache, micro_batch)
        gradients[way] = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        looks[way] = counts.looks
    for way, grads in gradients.items():
        assert values[way] == pytest.approx(values["cached"], abs=1e-12)
        assert grads.keys() == gradients["cached"].keys()
        for name, grad in gradients["cached"].items():
            torch.testing.assert_close(grads[name], grad, atol=1e-12, rtol=1e-10)
    assert max(grad.abs().max() for grad in gradients["cached"].values()) > 1e-3
    assert looks == {"cached": len(SIZES), "pages alone": len(SIZES), "all pages, padded": 1}


def test_no_layer_sends_gradients_to_its_frozen_inputs(vision_family):
    """transformers' hooks on embeddings are gone, and what the language model gets needs no gradient."""
    model = make(vision_family, lora=LORA, slots="zero").train()
    model.backbone.checkpoint_layers()
    features = model.preprocess(QUERIES, task="query")
    assert not model.encoder.read_content(features).embeds_BLD.requires_grad
    model(features)["token_embeddings"].sum().backward()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert trained
    assert all(weight.grad is not None for weight in trained)


def test_workers_get_no_weights(vision_family):
    """A tokenizer and an image processor: what another process can load in a moment, however it is started."""
    model = make(vision_family)
    sent = pickle.dumps(ColumnPreprocessor(model.preprocessor))
    assert len(sent) < 200_000
    features = pickle.loads(sent)([noise(64, 64)], task="document")
    own = model.preprocess([noise(64, 64)], task="document")
    assert all(torch.equal(features[name], own[name]) for name in own if name != "side")


def test_a_run_switches_checkpointing_on_without_the_hooks(data, tmp_path):
    run = TrainingRun(make_recipe(small(data, tmp_path / "run", lora=True, gradient_checkpointing=True)), resume=False)
    model = run.make_model()
    trainer = run.make_trainer(model, run.load_pairs())
    backbone = model.backbone.model
    assert backbone.is_gradient_checkpointing
    assert not trainer.args.gradient_checkpointing
    embeddings = [backbone.get_input_embeddings(), backbone.visual.patch_embed]
    assert not any(module._forward_hooks for module in embeddings)


@pytest.mark.parametrize("strategy", ["random", "feedback"])
def test_the_papers_loop_gives_the_vectors_of_one_pass_without_dropout(vision_family, strategy):
    """With dropout it draws anew for every readout, which one pass cannot: that is what it is for."""
    model = make(vision_family, slots=strategy, lora=LORA).train()
    model.encoder.slots.eval()
    features = model.preprocess(QUERIES, task="query")
    expected = model(features)["token_embeddings"]
    counts = count(model)
    model.encoder.loops = True
    found = model(features)["token_embeddings"]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if strategy != "feedback":
        assert [columns for _, columns in counts.positions] == [13, 14, 15, 16]
    model.eval()
    counts.positions.clear()
    model(features)
    assert len(counts.positions) == (4 if strategy == "feedback" else 1)
