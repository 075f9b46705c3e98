"""Each reduction against a slow or hand-made version, and in a model: same page, same vectors, whatever its batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from randslot.model.reductions import REDUCTIONS, cluster, kmeans, pool, reduce_pages, select
from support.models import make

SEED = (42, 7)


@pytest.fixture(params=list(REDUCTIONS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def directions(num: int, dim: int = 16, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(num, dim, generator=torch.Generator().manual_seed(seed)), dim=-1)


def same_rows(a: Tensor, b: Tensor) -> bool:
    """Whether two have the same rows, in whatever order."""
    return a.shape == b.shape and bool(
        ((a @ b.T).amax(dim=1) > 1 - 1e-5).all() and ((b @ a.T).amax(dim=1) > 1 - 1e-5).all()
    )


def test_select_takes_rows_each_once_and_the_seed_decides_which():
    vectors = torch.eye(20)
    chosen = select(vectors, 6, SEED)
    assert chosen.shape == (6, 20)
    assert chosen.sum(dim=0).max() == 1
    assert torch.equal(chosen, select(vectors, 6, SEED))
    assert torch.equal(chosen[:4], select(vectors, 4, SEED))
    for other in ((42, 8), (43, 7)):
        assert not torch.equal(chosen, select(vectors, 6, other))


def test_select_gives_every_token_the_same_chance():
    drawn = sum(select(torch.eye(10), 3, (0, key)).sum(dim=0) for key in range(2000))
    assert (drawn - 600).abs().max() < 100  # five standard deviations


def slow_ward(vectors: Tensor, num: int) -> list[list[int]]:
    """Merge the two nearest clusters again and again; distances to the merged one by the formula of Lance, Williams."""
    clusters = {i: [i] for i in range(len(vectors))}
    near = {(i, j): 1 - float(vectors[i] @ vectors[j]) for i in clusters for j in clusters if i < j}

    def squared(i: int, j: int) -> float:
        return near[min(i, j), max(i, j)] ** 2

    while len(clusters) > num:
        a, b = min((pair for pair in near if set(pair) <= clusters.keys()), key=lambda pair: near[pair])
        for c in clusters.keys() - {a, b}:
            sizes = [len(clusters[i]) for i in (a, b, c)]
            total = (sizes[0] + sizes[2]) * squared(a, c) + (sizes[1] + sizes[2]) * squared(b, c)
            near[min(a, c), max(a, c)] = ((total - sizes[2] * squared(a, b)) / sum(sizes)) ** 0.5
        clusters[a] += clusters.pop(b)
    return list(clusters.values())


@pytest.mark.parametrize("num", [1, 5])
def test_cluster_is_wards_clustering_merged_step_by_step(num):
    vectors = directions(14)
    means = torch.stack([F.normalize(vectors[members].mean(dim=0), dim=0) for members in slow_ward(vectors, num)])
    assert same_rows(cluster(vectors, num, SEED), means)


@pytest.mark.parametrize("length", [33, 1023])
def test_cluster_gives_the_number_asked_for(length):
    """The library takes a factor, and length / number as a factor would lose a cluster to rounding at some lengths."""
    assert cluster(directions(length), 32, SEED).shape == (32, 16)


def test_kmeans_is_where_lloyds_rounds_end():
    """Further rounds in plain steps, from its own clusters, change nothing."""
    vectors = directions(60, dim=4)
    means = kmeans(vectors, 5, SEED)
    labels = (vectors @ means.T).argmax(dim=1)
    for _ in range(50):
        centres = torch.stack([vectors[labels == i].mean(dim=0) for i in range(5)])
        labels = torch.cdist(vectors, centres).argmin(dim=1)
    assert same_rows(means, F.normalize(centres, dim=-1))


def test_pool_takes_the_mean_of_even_runs():
    vectors = directions(10)
    runs = [vectors[0:3], vectors[3:6], vectors[6:8], vectors[8:10]]
    expected = torch.stack([run.mean(dim=0) / run.mean(dim=0).norm() for run in runs])
    torch.testing.assert_close(pool(vectors, 4, SEED), expected)


def test_equal_tokens_are_no_trouble(name):
    """A blank page can have fewer distinct vectors than the budget."""
    vectors = directions(2).repeat_interleave(20, dim=0)
    few = REDUCTIONS[name](vectors, 4, SEED)
    assert 2 <= len(few) <= 4
    assert ((few @ directions(2).T).amax(dim=1) > 1 - 1e-5).all()


def test_pages_are_reduced_one_by_one_without_their_padding(name):
    lengths, num = (12, 5, 4, 3), 4
    pages = [directions(length, seed=length) for length in lengths]
    batch = torch.stack([torch.cat([torch.full((12 - len(page), 16), 9.0), page]) for page in pages])
    mask = torch.tensor([[0] * (12 - length) + [1] * length for length in lengths])
    seeds = [(42, length) for length in lengths]
    vectors, there = reduce_pages(name, batch, mask, num, seeds)
    assert there.tolist() == [[1, 1, 1, 1]] * 3 + [[1, 1, 1, 0]]
    for page, seed, found in zip(pages[:2], seeds, vectors, strict=False):
        torch.testing.assert_close(found, REDUCTIONS[name](page, num, seed))
    assert torch.equal(vectors[2], pages[2])
    assert torch.equal(vectors[3, :3], pages[3])


def test_a_model_reduces_pages_by_seed_and_content_and_leaves_queries_alone(name, pages, queries):
    model = make("qwen3-vl", slots="tokens")
    whole, asked = model.encode_document(pages, batch_size=1), model.encode_query(queries)
    keys = model.preprocess(pages, task="document")["keys"].tolist()
    if name == "random":  # of patches only
        for number, page in enumerate(pages):
            ids = model.preprocess([page], task="document")["input_ids"][0]
            whole[number] = whole[number][ids == model.encoder.backbone.config.image_token_id]
    model.use(reduction=name, page_vectors=4)
    few = model.encode_document(pages, batch_size=1)
    for page, key, vectors in zip(whole, keys, few, strict=True):
        torch.testing.assert_close(
            vectors, REDUCTIONS[name](page, 4, (0, key)) if len(page) > 4 else page, atol=1e-5, rtol=0
        )
    for before, after in zip(asked, model.encode_query(queries), strict=True):
        assert torch.equal(before, after)
    model.use(page_vectors=1000)
    for page, vectors in zip(whole, model.encode_document(pages, batch_size=1), strict=True):
        assert torch.equal(vectors, page)


def test_training_reduces_nothing(pages):
    model = make("qwen3-vl", slots="tokens", reduction="kmeans").train()
    features = model.preprocess(pages, task="document")
    assert model(features)["token_embeddings"].shape[1] == features["input_ids"].shape[1]


def test_random_select_draws_patches_and_no_token_of_the_prompt(vision_family, pages):
    """With as many vectors as a page has patches, all of them come, and nothing else."""
    model = make(vision_family, slots="tokens")
    for page in pages[:2]:
        features = model.preprocess([page], task="document")
        is_patch = features["input_ids"][0] == model.encoder.backbone.config.image_token_id
        num = int(is_patch.sum())
        assert 0 < num < len(is_patch)
        model.use(reduction="none")
        patches = model.encode_document([page])[0][is_patch]
        model.use(reduction="random", page_vectors=num)
        assert torch.equal(model.encode_document([page])[0], patches)
        model.use(reduction="random", page_vectors=max(num // 2, 1))
        for vector in model.encode_document([page])[0]:
            assert (patches == vector).all(dim=1).any()


def test_random_select_of_a_text_draws_from_all_tokens():
    model = make("llama", slots="tokens", reduction="random", page_vectors=3)
    assert model.encode_document(["the text of a page"])[0].shape[0] == 3
