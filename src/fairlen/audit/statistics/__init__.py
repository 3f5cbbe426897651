"""Statistics of a log, each with its interval over prompts."""
