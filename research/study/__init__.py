"""The study of docs/study/protocol.md: five experiments on the playground, from one command, resumable."""
