"""The loss is the paper's: over all processes as over one, with a cache as without, repeated pages masked or not."""

from __future__ import annotations

import ast
import os
import time
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from packaging.requirements import Requirement
from packaging.version import Version
from peft import LoraConfig
from torch.nn.parallel import DistributedDataParallel

import randslot
from randslot.training.loss import Loss, score
from support.models import make, noise, safe_half_precision

pytestmark = [pytest.mark.xdist_group("loss"), pytest.mark.slow]

LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
QUERIES = [f"query number {i * 7}" for i in range(8)]


def pages(reads: str = "image") -> list:
    """Eight pages of three sizes; the last is the second again, so that one process repeats a page of the other."""
    numbers = (0, 1, 2, 3, 4, 5, 6, 1)
    if reads == "text":
        return [f"page number {i} of a report" + " on ships" * (i % 3) for i in numbers]
    return [noise(64 + 32 * (i % 3), 64, i) for i in numbers]


def model_and_loss(family: str, strategy: str, batch: int, micro_batch: int):
    """A model whose random slots depend on the content alone, so that processes and batches draw the same."""
    model = make(family, slots=strategy, lora=LORA, visual_tokens=16).train()
    model.encoder.slots.eval()
    return model, Loss(model, temperature=0.5, batch=batch, micro_batch=micro_batch, mask_repeats=True)


def hard_negatives(rows: slice, num: int) -> list:
    """The negatives of each row, one after another; the first of the first row is its own page again."""
    found = [noise(64, 64, 0) if i == 0 else noise(96, 64, 50 + i) for i in range(8 * num)]
    return found[rows.start * num : rows.stop * num]


def gradients(model, loss, rows: slice, negatives: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
    some = pages(model.reads)[rows]
    columns = [model.preprocess(QUERIES[rows], task="query"), model.preprocess(some, task="document")]
    if negatives:
        columns.append(model.preprocess(hard_negatives(rows, negatives), task="document"))
    value = loss(columns)
    value.backward()
    return value.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


CASES = [("qwen3-vl", "learned"), ("qwen3-vl", "feedback"), ("qwen2.5-vl", "random")]


def in_one_of_two_processes(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=120), rank=rank, world_size=2
    )
    for family, strategy in CASES:
        for micro_batch in (0, 2):
            for negatives in (0, 2):
                model, loss = model_and_loss(family, strategy, 4, micro_batch)
                loss.model = DistributedDataParallel(model)
                result = gradients(model, loss, slice(4 * rank, 4 * rank + 4), negatives)
                torch.save(result, Path(folder, f"{family}-{strategy}-{micro_batch}-{negatives}-{rank}.pt"))
    torch.distributed.barrier()
    os._exit(0)  # gloo's own way down can wait for ever for a process that has gone already


@pytest.fixture(scope="module")
def from_two_processes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    processes = torch.multiprocessing.spawn(in_one_of_two_processes, (str(folder),), nprocs=2, join=False)
    deadline = time.monotonic() + 240
    while not processes.join(timeout=5):
        if time.monotonic() > deadline:
            for process in processes.processes:
                process.kill()
            pytest.fail("two processes did not finish within four minutes")
    return folder


@pytest.mark.parametrize("negatives", [0, 2])
@pytest.mark.parametrize("micro_batch", [0, 2], ids=["plain", "cached"])
@pytest.mark.parametrize(("family", "strategy"), CASES)
def test_two_processes_with_batch_4_equal_one_with_batch_8(
    family, strategy, micro_batch, negatives, from_two_processes
):
    """Pages and negatives of both are candidates, gradients flow back through the gather and are averaged."""
    model, loss = model_and_loss(family, strategy, 8, 0)
    value, expected = gradients(model, loss, slice(0, 8), negatives)
    names = [f"{family}-{strategy}-{micro_batch}-{negatives}-{rank}.pt" for rank in (0, 1)]
    ranks = [torch.load(from_two_processes / name) for name in names]
    assert (ranks[0][0] + ranks[1][0]) / 2 == pytest.approx(value, abs=1e-5)
    for _, found in ranks:
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-4)
    assert max(grad.abs().max() for grad in expected.values()) > 1e-3


@pytest.mark.parametrize("strategy", ["random", "feedback"])
def test_micro_batches_and_the_cache_change_no_gradient(family, strategy):
    """With fresh slots, and a micro-batch that does not divide the batch; also in the loop of the paper."""
    results = []
    for size, cached, loops in ((0, True, False), (3, True, False), (1, False, False), (3, True, True)):
        model = make(family, slots=strategy, lora=LORA, visual_tokens=16).train()
        model.encoder.loops = loops
        loss = Loss(model, temperature=0.5, batch=8, micro_batch=size, mask_repeats=True, gradient_cache=cached)
        torch.manual_seed(4)
        results.append(gradients(model, loss, slice(0, 8)))
    for value, found in results[1:]:
        assert value == pytest.approx(results[0][0], abs=1e-5)
        for name, expected in results[0][1].items():
            torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=1e-5)


def test_every_step_draws_other_slots():
    model = make("qwen3-vl", slots="random", lora=LORA, visual_tokens=16).train()
    loss = Loss(model, temperature=0.5, batch=8, micro_batch=3, mask_repeats=True)
    torch.manual_seed(4)
    values = [gradients(model, loss, slice(0, 8))[0] for _ in range(3)]
    assert len(set(values)) == 3


def by_hand(model, features, masked: bool) -> float:
    """InfoNCE over MaxSim in plain loops, leaving equal pages out of the sum if masked."""
    queries, vectors = (model(part)["token_embeddings"].detach() for part in features)
    keys, total = features[1]["keys"].tolist(), 0.0
    for i, query in enumerate(queries):
        scores = [sum(max(float(a @ b) for b in page) for a in query) / 0.5 for page in vectors]
        kept = [j for j in range(len(scores)) if j == i or not masked or keys[j] != keys[i]]
        total += float(torch.logsumexp(torch.tensor([scores[j] for j in kept]), 0)) - scores[i]
    return total / len(queries)


@pytest.mark.parametrize("micro_batch", [0, 1], ids=["plain", "cached"])
@pytest.mark.parametrize("masked", [True, False])
def test_the_loss_by_hand_with_a_repeated_page(masked, micro_batch):
    model = make("qwen3-vl", slots="zero", visual_tokens=16).train()
    images = [noise(64, 64, seed) for seed in (1, 2, 1)]  # the first and the last query share their page
    features = [model.preprocess(QUERIES[:3], task="query"), model.preprocess(images, task="document")]
    loss = Loss(model, temperature=0.5, batch=3, micro_batch=micro_batch, mask_repeats=masked)
    assert loss(features).item() == pytest.approx(by_hand(model, features, masked), abs=1e-4)
    assert abs(by_hand(model, features, True) - by_hand(model, features, False)) > 0.1


def test_several_queries_of_a_page_by_hand_in_loss_and_gradients():
    """Two queries for each of four pages: every query is compared with the four pages, each encoded once."""
    found = []
    for by_hand in (True, False):
        model, loss = model_and_loss("qwen3-vl", "random", 4, 2)
        features = [model.preprocess(QUERIES, task="query"), model.preprocess(pages()[:4], task="document")]
        if by_hand:
            queries, vectors = (model(dict(part))["token_embeddings"] for part in features)
            value = torch.zeros(())
            for i, query in enumerate(queries):
                scores = [sum(max(a @ b for b in page) for a in query) / 0.5 for page in vectors]
                value = value + (torch.logsumexp(torch.stack(scores), 0) - scores[i // 2]) / len(queries)
        else:
            value = loss(features)
        value.backward()
        found.append((value.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, slow), (value, fast) = found
    assert value == pytest.approx(expected, abs=1e-5)
    for name in slow:
        torch.testing.assert_close(fast[name], slow[name], atol=1e-5, rtol=1e-4)
    assert max(grad.abs().max() for grad in slow.values()) > 1e-3


def nested_by_hand(model, features, prefixes) -> torch.Tensor:
    """The mean over prefixes of InfoNCE over MaxSim of the first vectors, in plain loops, with gradients."""
    queries, vectors = (model(dict(part), task=task)["token_embeddings"] for part, task in features)
    losses = []
    for num in prefixes:
        for i, query in enumerate(queries):
            scores = [sum(max(a @ b for b in page[:num]) for a in query[:num]) / 0.5 for page in vectors]
            losses.append(torch.logsumexp(torch.stack(scores), 0) - scores[i])
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("strategy", "micro_batch"), [("random", 0), ("random", 2), ("feedback", 2)])
def test_nested_budgets_by_hand_in_loss_and_gradients(strategy, micro_batch):
    """Three prefixes of four vectors; random slots come from the content, so that both ways draw the same."""
    found = []
    for by_hand in (True, False):
        model, _ = model_and_loss("qwen3-vl", strategy, 3, 0)
        texts, images = QUERIES[:3], pages()[:3]
        features = [(model.preprocess(texts, task="query"), "query")]
        features.append((model.preprocess(images, task="document"), "document"))
        if by_hand:
            value = nested_by_hand(model, features, (1, 2, 4))
        else:
            options = {"temperature": 0.5, "batch": 3, "micro_batch": micro_batch, "mask_repeats": True}
            value = Loss(model, **options, prefixes=(1, 2, 4))([part for part, _ in features])
        value.backward()
        found.append((value.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (expected, slow), (value, fast) = found
    assert value == pytest.approx(expected, abs=1e-5)
    assert slow.keys() == fast.keys()
    for name in slow:
        torch.testing.assert_close(fast[name], slow[name], atol=1e-5, rtol=1e-4)
    assert max(grad.abs().max() for grad in slow.values()) > 1e-3


def test_scores_stay_in_float32_under_autocast():
    vectors = [torch.nn.functional.normalize(torch.randn(3, 4, 64), dim=-1) for _ in range(2)]
    queries, pages = ((side, torch.ones(3, 4, dtype=torch.bool)) for side in vectors)
    expected = score(queries, pages)
    with safe_half_precision(), torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score(queries, pages)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, expected)


def test_we_stand_on_public_names_of_sentence_transformers():
    """A release within our bounds may change what begins with an underscore."""
    private = []
    for file in Path(randslot.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sentence_transformers"):
                names = [*str(node.module).split("."), *(one.name for one in node.names)]
                private += [f"{file.name}: {name}" for name in names if name.startswith("_")]
    assert not private
    newest = Version(metadata.version("sentence-transformers"))
    wanted = [line for line in metadata.requires("randslot") if line.startswith("sentence-transformers")]
    assert newest in Requirement(wanted[0]).specifier  # `make newest` runs this with the newest that can be had


def test_widths_are_losses_of_their_own():
    """The weighted mean over widths and prefixes, each of vectors cut and normalised; with a cache too."""
    weights = {8: 0.5, 16: 2.0}
    results = []
    for micro_batch in (0, 3):
        model = make("qwen3-vl", slots="learned", lora=LORA, visual_tokens=16).train()
        loss = Loss(
            model,
            temperature=0.5,
            batch=8,
            micro_batch=micro_batch,
            mask_repeats=False,
            prefixes=(1, 4),
            widths=weights,
        )
        results.append(gradients(model, loss, slice(0, 8)))
    model = make("qwen3-vl", slots="learned", lora=LORA, visual_tokens=16).train()
    queries, some = (
        model(model.preprocess(items, task=task))["token_embeddings"]
        for items, task in ((QUERIES, "query"), (pages(), "document"))
    )
    total = 0.0
    for width, weight in {queries.shape[-1]: 1.0, **weights}.items():
        for num in (1, 4):
            cut = [torch.nn.functional.normalize(side[:, :num, :width], dim=-1) for side in (queries, some)]
            scores = torch.einsum("qkd,pld->qpkl", *cut).amax(-1).sum(-1) / 0.5
            total = total + weight * torch.nn.functional.cross_entropy(scores, torch.arange(8))
    total = total / (2 * 3.5)
    total.backward()
    for value, found in results:
        assert value == pytest.approx(total.item(), abs=1e-5)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("strategy", ["learned", "feedback"])
def test_hard_negatives_are_candidates_of_every_query(strategy):
    """Against a plain reference, with micro-batches, a cache and in the loop; copies of a query's page are masked."""
    results = []
    for size, loops in ((0, False), (3, False), (3, True)):
        model = make("qwen3-vl", slots=strategy, lora=LORA, visual_tokens=16).train()
        model.encoder.loops = loops
        loss = Loss(model, temperature=0.5, batch=24, micro_batch=size, mask_repeats=True)
        results.append(gradients(model, loss, slice(0, 8), 2))
    model = make("qwen3-vl", slots=strategy, lora=LORA, visual_tokens=16).train()
    every = pages() + hard_negatives(slice(0, 8), 2)
    queries = model(model.preprocess(QUERIES, task="query"))["token_embeddings"]
    candidates = model(model.preprocess(every, task="document"))["token_embeddings"]
    scores = torch.einsum("qkd,pld->qpkl", queries, candidates).amax(-1).sum(-1) / 0.5
    for row, column in ((0, 8), (1, 7), (7, 1)):  # the first negative of the first row; the second page and the last
        scores[row, column] = float("-inf")
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(8))
    expected.backward()
    for value, found in results:
        assert value == pytest.approx(expected.item(), abs=1e-5)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-4)
