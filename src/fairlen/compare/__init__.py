"""Methods side by side: the same prompts, seeds, held-out problems and budget for each, and differences with paired intervals."""
