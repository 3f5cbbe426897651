"""A checkpoint of a framework has what a method learned; another method does not go on from it."""

from dataclasses import replace

import pytest

from fairlen.integrations.run_folder import resume_method, save_method
from fairlen.methods.compose import compose


def test_what_is_saved_comes_back(tmp_path):
    method = compose("fspo")
    learned = method.with_state(dict.fromkeys(method.state, 1))
    save_method(tmp_path, learned, drawn=3)
    resumed, kept = resume_method(tmp_path, method)
    assert resumed == learned and kept["drawn"] == 3
    path = tmp_path / "fairlen.json"
    path.write_text(path.read_text().replace('"surrogate.drift_average": 1', '"surrogate.drift_average": NaN'))
    with pytest.raises(ValueError, match=r"surrogate\.drift_average=nan.*earlier checkpoint"):
        resume_method(tmp_path, method)
    with pytest.raises(ValueError, match=r"aggregation .* -> "):
        resume_method(tmp_path, replace(method, aggregation=compose("dapo").aggregation))
    with pytest.raises(FileNotFoundError, match="no state of the method was saved"):
        resume_method(tmp_path / "stock", compose("grpo"))  # a checkpoint of the trainer that is extended
