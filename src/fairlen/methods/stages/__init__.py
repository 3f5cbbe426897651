"""The choices a method is made of. Each is a frozen dataclass that is called; none knows a model, an engine or a file."""
