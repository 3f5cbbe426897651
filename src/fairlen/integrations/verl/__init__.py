"""fairlen inside verl 0.9.1 and its V1 trainer: a plug-in that registers trainers, and `fairlen verl`, which starts a job."""
