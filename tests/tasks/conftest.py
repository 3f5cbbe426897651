"""Data sets on disk, settings to load them with, and tasks made of rows."""

from pathlib import Path

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from data_sets import write, write_sets

from fairlen.tasks.dataset import DataTask
from fairlen.tasks.load import load_task
from fairlen.train.run.config import TrainConfig


@pytest.fixture(scope="session")
def sets(tmp_path_factory) -> Path:
    """A folder with every set as NAME.parquet and NAME.jsonl."""
    folder = tmp_path_factory.mktemp("sets")
    write_sets(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(CHATML)


@pytest.fixture
def load(tmp_path, tokenizer):
    """A task from rows by file name; flags after them."""

    def load_rows(rows: dict[str, list[dict]], weights: dict[str, str] | None = None, **flags) -> DataTask:
        places = [write(tmp_path, name, some) + (weights or {}).get(name, "") for name, some in rows.items()]
        data = tuple(place for place in places if "eval" not in Path(place).name)
        config = TrainConfig.of(data=data, eval_data=tuple(p for p in places if p not in data), **flags)
        task = load_task(config, tokenizer, config.run.seed)
        assert isinstance(task, DataTask)
        return task

    return load_rows
