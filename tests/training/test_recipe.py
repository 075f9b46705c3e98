"""The defaults are the paper's settings; a recipe file holds only differences; what is wrong is one line."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import randslot
from randslot.errors import UsageError
from randslot.training.plan import choose_hardware
from randslot.training.recipe import make_recipe, read_recipe, write_recipe
from randslot.training.train import make_arguments

SHIPPED = ("qwen2.5-vl-3b", "qwen3-vl-4b")


def arguments_of(recipe, world: int):
    return make_arguments(recipe, Path("runs"), world, choose_hardware(recipe))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_recipes_resolve_to_the_papers_table(name):
    recipe = read_recipe(name)
    args = arguments_of(recipe, 8)
    assert (
        recipe.backbone
        == {
            "qwen2.5-vl-3b": "Qwen/Qwen2.5-VL-3B-Instruct",
            "qwen3-vl-4b": "Qwen/Qwen3-VL-4B-Instruct",
        }[name]
    )
    assert (recipe.slots, recipe.query_vectors, recipe.page_vectors, recipe.visual_tokens) == ("random", 4, 4, 1536)
    assert (recipe.data, recipe.split) == ("vidore/colpali_train_set", "train")
    assert (recipe.query_column, recipe.page_column) == ("query", "image")
    assert (recipe.lora, recipe.lora_rank, recipe.lora_alpha, recipe.lora_dropout) == (True, 16, 32, 0.05)
    assert (recipe.temperature, recipe.seed, recipe.epochs, recipe.steps) == (0.07, 42, 1, 0)
    assert (recipe.optimizer, recipe.precision, recipe.micro_batch) == ("paged_adamw_8bit", "bf16", 1)
    assert recipe.repeated_pages == "negatives"  # the paper's plain InfoNCE
    assert recipe.keep_empty_queries  # it filters nothing
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (16, 1)
    assert (args.learning_rate, args.weight_decay, args.max_grad_norm) == (2e-4, 0.01, 1.0)
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.999, 1e-8)
    assert recipe.gradient_checkpointing  # which the run switches on, not the trainer
    assert args.dataloader_drop_last
    assert args.num_train_epochs == 1


@pytest.mark.parametrize("name", ["qwen3.5-0.8b", "smolvlm-256m"])
def test_a_recipe_of_another_backbone_trains_it_as_the_paper_trains_its_own(name):
    """The name of the recipe is that of the shape, and the backbone's id on the hub without its last words."""
    recipe = read_recipe(name)
    assert replace(recipe, backbone="", untrained=name, output="") == make_recipe({"untrained": name})
    assert recipe.backbone.lower().removesuffix("-instruct").endswith(f"/{name}")
    assert randslot.untrained(name, device="meta", lora=True).settings.visual_tokens == recipe.visual_tokens


def test_recipe_files_hold_only_differences():
    defaults = make_recipe({"untrained": "qwen3-vl-tiny"})
    for file in (Path(randslot.__file__).parent / "recipes").glob("*.toml"):
        for key, value in tomllib.loads(file.read_text()).items():
            assert value != getattr(defaults, key) or key == "untrained", f"{file.name}: {key}"


def test_the_rate_falls_along_a_quarter_of_a_cosine_and_ends_at_half():
    """PyTorch's own schedule with T_max = 1,846 over 923 steps, as the paper's table says."""
    from transformers import get_scheduler

    args = arguments_of(read_recipe("qwen2.5-vl-3b"), 8)
    ours, theirs = (torch.optim.SGD([torch.zeros(1)], lr=2e-4) for _ in range(2))
    schedule = get_scheduler(args.lr_scheduler_type, ours, 0, 923, args.lr_scheduler_kwargs)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=2 * 923)
    rates = [schedule.get_last_lr()[0]]
    for _ in range(923):
        ours.step()
        theirs.step()
        schedule.step()
        reference.step()
        rates.append(schedule.get_last_lr()[0])
        assert rates[-1] == pytest.approx(reference.get_last_lr()[0], rel=1e-6)
    assert rates[0] == pytest.approx(2e-4)
    assert rates[461] == pytest.approx(2e-4 * 0.5 * (1 + math.cos(math.pi * 461 / 1846)))
    assert rates[923] == pytest.approx(1e-4)


def test_a_written_recipe_reads_back_the_same(tmp_path):
    recipe = make_recipe(
        {"untrained": "qwen3-vl-tiny", "output": 'a "b" \x7f 😀', "temperature": 1, "prefixes": [1, 4]}
    )
    write_recipe(recipe, tmp_path / "recipe.toml")
    assert read_recipe(tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1e-3}, "unknown key 'learning_rat'; did you mean 'learning_rate'"),
        ({"prefixes": [1, 8]}, "prefixes must increase from 1 to at most 4"),
        ({"batch": "many"}, "batch must be a whole number, not 'many'"),
        ({"lora": 1}, "lora must be true or false, not 1"),
        ({"slots": "rand"}, "slots='rand' is not one of"),
        ({"on_bad_row": "weep"}, "on_bad_row = 'weep' is not one of stop, skip"),
        ({"batch": 1}, "batch must be between 2 and"),
        ({"learning_rate": float("nan")}, "learning_rate must be between 0 and"),
        ({"data": ""}, "set data"),
        ({"backbone": "a/b"}, "set either backbone .* or untrained"),
        ({"still_vision": True, "workers": 0}, "still_vision needs lora = false"),
        ({"validate_every": 5}, "validate_every needs validation"),
    ],
)
def test_wrong_values_are_one_line(values, message):
    with pytest.raises(UsageError, match=message) as caught:
        make_recipe({"untrained": "qwen3-vl-tiny"} | values)
    assert "\n" not in str(caught.value)


def test_wrong_files_and_changes_are_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"no recipe nowhere\.toml: neither a file.*qwen2\.5-vl-3b, .*qwen3-vl-4b"):
        read_recipe("nowhere.toml")
    (tmp_path / "torn.toml").write_text("batch = ")
    with pytest.raises(UsageError, match=r"cannot read .*torn\.toml"):
        read_recipe(tmp_path / "torn.toml")
    with pytest.raises(UsageError, match="--set takes key=value, not 'slots'"):
        read_recipe("tiny", ["slots"])
    with pytest.raises(UsageError, match="unknown key 'slot'; did you mean 'slots'"):
        read_recipe("tiny", ["slot=zero"])


def test_changes_are_read_as_toml_or_words():
    recipe = read_recipe("tiny", ["slots=zero", "batch=16", "learning_rate=1e-3", "lora=true", "data=my pairs.jsonl"])
    assert (recipe.slots, recipe.batch, recipe.learning_rate, recipe.lora) == ("zero", 16, 1e-3, True)
    assert recipe.data == "my pairs.jsonl"
