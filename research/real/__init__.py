"""What the papers' rules do on a real language model, measured without training: phase A of docs/study/protocol.md."""
