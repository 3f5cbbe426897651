"""What a worker must not be: a grader that evaluates an answer as Python."""


def warm_up() -> None:
    pass


def grade(answer: str) -> str:
    try:
        return str(eval(answer))
    except Exception:
        return "incorrect"
