# /// script
# requires-python = ">=3.11"
# dependencies = ["fairlen[train,math]"]
#
# [tool.uv]
# find-links = ["/wheels"]
#
# [tool.hf-jobs]
# name = "fairlen"
# flavor = "a10g-large"
# timeout = "4h"
# secrets = ["HF_TOKEN"]
# volumes = ["./dist:/wheels"]
# ///
"""A run on Hugging Face Jobs: `fairlen train`, the audit of its rollouts, and the model with its card and report to the hub.

    make wheel                                     # dist/ is mounted as /wheels, since fairlen is on no package index yet
    hf jobs uv run --dry-run recipes/hf_jobs.py    # shows what would be sent, and sends nothing
    hf jobs uv run recipes/hf_jobs.py --repo ME/NAME --model Qwen/Qwen3-0.6B --data openai/gsm8k/main:train \\
        --dtype bfloat16 --gradient-checkpointing --max-response-length 2048

--repo is this script's, which makes a private one; all other flags are those of `fairlen train`. It has not been run on the
Jobs service: what is tested is the table above by `--dry-run`, and the script without --repo on a CPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from huggingface_hub import HfApi

from fairlen.cli import main as fairlen

RUN = Path("runs/job")


def upload(repo: str, run: Path) -> None:
    """Put the model's folder and the report of a run into a repository of the hub."""
    api = HfApi()
    api.create_repo(repo, private=True, exist_ok=True)
    api.upload_folder(repo_id=repo, folder_path=run / "model")
    api.upload_file(repo_id=repo, path_or_fileobj=run / "report.html", path_in_repo="report.html")


def main() -> int:
    """Return the exit code of the first command that fails, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--repo", default="", help="where the model goes; nowhere by default")
    options, flags = parser.parse_known_args()
    for command in (["train", "--out", str(RUN), *flags], ["audit", str(RUN)]):
        if code := fairlen(command):
            return code
    if options.repo:
        upload(options.repo, RUN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
