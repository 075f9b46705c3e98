"""Pool the vectors of a full-token page: the paper's baselines.

Each function takes unit vectors (L, D) in the order of the page's tokens, a number K < L and a seed; it returns unit
vectors (K, D), or fewer if tokens coincide. Cluster and k-means compare distances, so rounding may break ties
differently in another batch.

Shapes: B batch, L tokens, K vectors, D dimension.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Seed = tuple[int, ...]


def select(vectors_LD: Tensor, num: int, seed: Seed) -> Tensor:
    """Random-Select: a random subset (of an image, of its patches); a smaller one is a prefix of a larger one."""
    chosen = np.random.default_rng(seed).permutation(len(vectors_LD))[:num]
    return vectors_LD[torch.from_numpy(chosen).to(vectors_LD.device)]


def cluster(vectors_LD: Tensor, num: int, seed: Seed) -> Tensor:
    """SemCluster: the mean of each cluster of Ward's hierarchical clustering by cosine distance."""
    # It makes floor(L / factor) clusters; the extra half keeps rounding from losing one.
    pooling = HierarchicalTokenPooling(len(vectors_LD) / (num + 0.5), num_protected_tokens=0)
    means: Tensor = pooling.pool_one(vectors_LD)
    return means


def kmeans(vectors_LD: Tensor, num: int, seed: Seed) -> Tensor:
    """K-Means: the centroids, initialised by seeded k-means++."""
    from sklearn.cluster import KMeans  # slow to import, and not needed for search
    from sklearn.exceptions import ConvergenceWarning

    start = int(np.random.default_rng(seed).integers(2**32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than clusters: means repeat
        found = KMeans(num, n_init=1, random_state=start).fit(vectors_LD.detach().cpu().numpy())
    return F.normalize(torch.from_numpy(found.cluster_centers_).to(vectors_LD), dim=-1)


def pool(vectors_LD: Tensor, num: int, seed: Seed) -> Tensor:
    """1D-Pooling: the mean of each run of neighbouring tokens, in runs of equal length."""
    return F.normalize(torch.stack([run.mean(dim=0) for run in vectors_LD.tensor_split(num)]), dim=-1)


REDUCTIONS: dict[str, Callable[[Tensor, int, Seed], Tensor]] = {
    "random": select,
    "cluster": cluster,
    "kmeans": kmeans,
    "pooling": pool,
}
SEEDED_REDUCTIONS = ("random", "kmeans")


def plain_name(name: str) -> str:
    """Return the stored name of a reduction, given that or the paper's name."""
    return {"semcluster": "cluster", "pool1d": "pooling"}.get(name, name) if isinstance(name, str) else name


def reduce_pages(
    name: str, vectors_BLD: Tensor, mask_BL: Tensor, num: int, seeds: Sequence[Seed]
) -> tuple[Tensor, Tensor]:
    """Reduce each page to at most `num` vectors; return them padded (B, K, D), with their mask (B, K)."""
    pages, masks = [], []
    for vectors, mask, seed in zip(vectors_BLD, mask_BL.bool(), seeds, strict=True):
        page = vectors[mask]
        if len(page) > num:
            page = REDUCTIONS[name](page, num, seed)
        pages.append(page)
        masks.append(mask_BL.new_ones(len(page)))
    return pad_sequence(pages, batch_first=True), pad_sequence(masks, batch_first=True)
