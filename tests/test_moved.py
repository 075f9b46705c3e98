"""Modules and names of earlier versions can still be imported, and say once where they are now."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

from randslot.moved import MOVED, RENAMED

# What the documentation of 0.1.0 imports, and what saved models name.
DOCUMENTED = {
    "randslot": "Library RandSlotError Recipe Settings SlotEncoder UsageError load remote tiny train untrained",
    "randslot.encoder": "Settings SlotEncoder check_query load_encoder sort_inputs",
    "randslot.model": "load tiny untrained weights_key RandSlotModel",
    "randslot.client": "remote open_model is_url RemoteEncoder",
    "randslot.export": "export_model FORMAT GUIDE",
    "randslot.slots": "STRATEGIES SIDES Side Strategy Table Random Zero Fixed Learned Sequential Feedback Tokens",
    "randslot.evaluation.run": "Evaluation",
    "randslot.evaluation.tasks": "own_task find_tasks Task",
    "randslot.evaluation.report": "make_report read_results",
    "randslot.analysis.budgets": "sweep_budgets judge_budgets",
    "randslot.analysis.cost": "PAPER list_costs",
    "randslot.analysis.readouts": "intervene list_gains list_readouts",
    "randslot.analysis.runs": "read_runs Run Part",
    "randslot.analysis.winners": "count_winners",
    "randslot.library.library": "Library Hit Match Status delete_library",
    "randslot.library.store": "Store StoredPage Where Found page_id",
    "randslot.library.folder": "Folder",
    "randslot.library.home": "Home",
    "randslot.library.server": "Server ServerStore connect",
    "randslot.pages": "open_page num_pages list_pages PIXELS",
    "randslot.samples.sets": "write_set",
    "randslot.study.plan": "Study read_study",
    "randslot.tables": "Table write_table",
    "randslot.training.loss": "make_loss",
    "randslot.training.outlines": "Found find_pairs",
    "randslot.training.run": "train Run",
    "randslot.training.vision": "StillVision",
}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_names_of_before(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = import_module(module)
    for name in DOCUMENTED[module].split():
        assert getattr(found, name) is not None


@pytest.mark.parametrize("old", MOVED)
def test_every_moved_module_is_there(old):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module(f"randslot.{old}")


@pytest.mark.parametrize("old", RENAMED)
def test_every_renamed_name_is_there(old):
    module, _, name = old.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = getattr(import_module(f"randslot.{module}"), name)
    home, _, new = RENAMED[old].rpartition(".")
    assert found is getattr(import_module(f"randslot.{home}"), new)


@pytest.mark.slow
def test_an_old_path_warns_once():
    code = "import randslot.slots, randslot.slots; from randslot.slots import Zero; print(Zero.title)"
    code += "; import randslot.evaluation.metrics"
    run = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "Zero-Feedback"
    assert run.stderr.count("DeprecationWarning") == 2  # one for each module
    assert "randslot.slots has moved to randslot.model.slots" in run.stderr


def test_what_was_never_there_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'randslot\.slotz'"):
        import_module("randslot.slotz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old = import_module("randslot.slots")
    with pytest.raises(AttributeError, match="no attribute 'Five'"):
        _ = old.Five


def test_a_family_is_equal_to_its_name():
    encoder = import_module("randslot").tiny("qwen3-vl").encoder
    assert encoder.family == "qwen3-vl" == str(encoder.family)
    assert encoder.family != "qwen2.5-vl"
    with pytest.warns(DeprecationWarning, match="most_pixels is now page_pixels"):
        assert encoder.most_pixels == encoder.page_pixels
