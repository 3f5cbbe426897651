"""A service over HTTP: right programs pass through it, and its failures are never theirs."""

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial

import pytest
from loops import over
from sandbox_service import Service, serving

from fairlen.verify.execution import Execution, Limits
from fairlen.verify.program import ProgramTest, ProgramTests, grade_code
from fairlen.verify.sandbox import RemoteSandbox, open_sandbox, read_answer

quick = partial(RemoteSandbox, patience=1.0, pause=0.01)
LIMITS = Limits(seconds=2.0)


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    running.plan.clear()
    running.requests.clear()
    return running


def run(service: Service, program: str, stdin: bytes = b"", limits: Limits = LIMITS) -> Execution:
    return asyncio.run(quick(service.url).run(program, stdin, limits))


@over(
    "program, stdin, status, stdout",
    [
        ("print(input() * 2)", b"ab\n", "ok", b"abab\n"), ("print('añ😀')", b"", "ok", "añ😀\n".encode()),
        ("1 / 0", b"", "crashed", b""), ("x = bytearray(2 << 30)", b"", "memory", b""),
        ("import time; time.sleep(9)", b"", "timeout", b""),
    ],
)  # fmt: skip
def test_programs(service: Service, program: str, stdin: bytes, status: str, stdout: bytes) -> None:
    service.requests.clear()
    execution = run(service, program, stdin)
    assert (execution.status, execution.stdout) == (status, stdout), execution
    assert len(service.requests) == 1


def test_the_request_is_sandbox_fusions(service: Service) -> None:
    run(service, "print(1)", b"x", Limits(seconds=3.0, memory_mib=512))
    assert service.requests == [
        ("/run_code", {"code": "print(1)", "stdin": "x", "language": "python", "compile_timeout": 3.0, "run_timeout": 3.0,
                       "memory_limit_MB": 512}),
    ]  # fmt: skip


def test_an_output_that_the_service_may_have_cut_is_too_long(service: Service) -> None:
    assert run(service, f"print('x' * {(1 << 20) - 9})").status == "ok"
    assert run(service, f"print('x' * {(1 << 20) + 9})").status == "output_limit"


def test_an_answer_of_megabytes_is_not_read_to_its_end(service: Service) -> None:
    """Of a service that cuts nothing: 48 MB of JSON for 8 MB that a program printed."""
    run_result = {"status": "Finished", "stdout": "\0" * (8 << 20)}
    service.plan[:] = [json.dumps({"status": "Success", "run_result": run_result})]
    execution = run(service, "print(1)")
    assert (execution.status, execution.stdout, len(service.requests)) == ("output_limit", b"", 1)


@pytest.mark.parametrize(
    "failure",
    ["500", "502", "503", "429", "hang", "drip", "hang_up", "<html>", "[]", "{}", "null", '{"status": "Success"}', "[" * 9999,
     '{"status": "Success", "run_result": {"status": "Finished", "return_code": null, "stdout": ""}}',
     '{"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "execution_time": "soon"}}',
     '{"status": "SandboxError", "message": "disk full", "run_result": null}',
     '{"status": "SandboxError", "message": "", "run_result": {"status": "Error", "stderr": "no fork"}}'],
)  # fmt: skip
def test_a_service_that_fails_is_asked_again(service: Service, failure: str) -> None:
    service.plan[:] = [failure]
    assert run(service, "print(1)", limits=Limits(seconds=0.5)).stdout == b"1\n"
    assert len(service.requests) == 2


@pytest.mark.parametrize("failure", ["500", "<html>", "hang_up", '{"status": "SandboxError", "message": "disk full"}'])
def test_a_service_that_goes_on_failing_says_nothing_about_the_program(service: Service, failure: str) -> None:
    service.plan[:] = [failure] * 3
    execution = run(service, "print(1)")
    assert execution.status == "infrastructure" and len(service.requests) == 3
    assert service.url.encode() in execution.stderr and b"attempts: 3" in execution.stderr


def test_a_refusal_is_not_repeated(service: Service) -> None:
    service.plan[:] = ["422"]
    execution = run(service, "print(1)")
    assert execution.status == "infrastructure" and b"HTTP 422: no" in execution.stderr and len(service.requests) == 1


def test_a_service_that_hangs_is_left(service: Service) -> None:
    service.plan[:] = ["hang", "drip", "hang"]
    start = time.perf_counter()
    assert run(service, "print(1)", limits=Limits(seconds=0.2)).status == "infrastructure"
    assert 3 * 1.2 <= time.perf_counter() - start < 60  # (0.2 + 1.0) s each


def test_nobody_there() -> None:
    execution = asyncio.run(quick("http://127.0.0.1:1").run("print(1)", b"", LIMITS))
    assert execution.status == "infrastructure" and b"refused" in execution.stderr
    with pytest.raises(ValueError, match=r"an honest program ended with 'infrastructure'.*\n.*Check the URL"):
        open_sandbox("http://127.0.0.1:1")


def test_grading_through_a_service(service: Service) -> None:
    opened = open_sandbox(service.url + "/")
    assert opened.describe()["url"] == f"{service.url}/run_code"
    double = ProgramTests((ProgramTest("30457\n", "60914\n"), ProgramTest("4\n", "8\n")))
    pair = ProgramTests((ProgramTest("[1]\n2", "[[1], 2]"),), function="pair")
    assert asyncio.run(grade_code(opened, "print(2 * int(input()))", double)) == "correct"
    assert asyncio.run(grade_code(opened, "print(6)", double)) == "incorrect"
    assert asyncio.run(grade_code(opened, "class Solution:\n    def pair(self, a, b): return a, b", pair)) == "correct"
    service.plan[:] = ["500"] * 6
    broken = quick(service.url)
    assert asyncio.run(grade_code(broken, "print(6)", double)) == "error"
    # No expected output travels. (Of a number that no random mark in a request ends with by chance.)
    assert any("30457" in json.dumps(request) for _, request in service.requests)
    assert all("60914" not in json.dumps(request) for _, request in service.requests)


def test_credentials_are_not_recorded() -> None:
    remote = RemoteSandbox("https://sandbox.example:8080/v1/run_code/?key=abc")
    assert remote.url == "https://sandbox.example:8080/v1/run_code?key=abc"
    assert remote.describe()["url"] == "https://sandbox.example:8080/v1/run_code"
    with pytest.raises(ValueError, match="leave user and password out") as refusal:
        RemoteSandbox("https://me:secret@sandbox.example")
    assert "secret" not in str(refusal.value)


def test_signals_are_read_as_such() -> None:
    run_result = {"status": "Finished", "return_code": -11, "stdout": "", "stderr": "", "execution_time": 0.1}
    body = json.dumps({"status": "Failed", "message": "", "run_result": run_result}).encode()
    assert (read_answer(body, LIMITS).status, read_answer(body, LIMITS).exit_code) == ("crashed", 139)
