"""Methods of the user's own: what a name stands for (kinds), and what is tried of it before a run (trial)."""
