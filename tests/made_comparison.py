"""The folder of a comparison that ended, written by hand: evaluations and costs of each run, and the records of a small one."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from lines import write_lines

from fairlen.compare.config import parse_variant
from fairlen.train.run.config import TrainConfig

RECORDS = Path(__file__).parent / "fixtures_formats" / "fairlen" / "records"


def make_comparison(folder: Path, last: dict[str, float], seeds: int = 3, match: str = "generated") -> Path:
    """Methods of which so many of 40 problems are solved in the end, of their first samples; seed s one more than seed s - 1.

    Three evaluations, from none to that many, at 0, 500 and 1,000 generated tokens, and 30 more a seed.
    """
    folder.mkdir(parents=True)
    (folder / "comparison.json").write_text(json.dumps(asdict(TrainConfig.of(samples=2)) | {"match": match}))
    (folder / "results.json").write_text(json.dumps([{"name": name} for name in last]))
    for name, solved in last.items():
        for seed in range(seeds):
            place = folder / parse_variant(name).folder / f"seed-{seed}"
            place.mkdir(parents=True)
            (place / "records").symlink_to(RECORDS)
            done = {"updates": 4, "generated": 1000 + 30 * seed, "seconds": 2.0, "rollout_batches": 4}
            (place / "done.json").write_text(json.dumps(done))
            evaluations, metrics = [], []
            for part in (0, 1, 2):
                number = int(solved + seed) * part // 2
                correct = np.zeros((40, 2), int)
                correct[:number, 0] = 1
                evaluations.append({"update": part, "correct": correct.tolist(), "length": (5 + 3 * correct).tolist()})
                metrics.append({
                    "update": 2 * part, "rollout_batch": 2 * part, "eval/accuracy": number / 80,
                    "tokens/generated_total": part * done["generated"] // 2, "time/training": part * 1.0,
                })  # fmt: skip
            for file, rows in (("evaluations", evaluations), ("metrics", metrics)):
                write_lines(place / f"{file}.jsonl", *rows)
    return folder
