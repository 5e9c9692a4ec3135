"""Another model's verdicts: how its replies are read, and what happens where there is none."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from diffattn.evals.hallucination import Hallucination
from diffattn.evals.judge import Judge, verdict
from diffattn.evals.reader import GREEDY
from support.hallucinating import asked, copies, run
from support.readers import Planted


class Endpoint(BaseHTTPRequestHandler):
    """A judge that reads: whatever has a walrus is wrong, what it is not asked properly it does not say."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions" and self.headers["Authorization"] == "Bearer secret"
        question = body["messages"][0]["content"]
        reply = "Hm." if body["model"] != "wise" else "**Wrong**" if "Answer: A walrus" in question else "Grounded."
        content = json.dumps({"choices": [{"message": {"content": reply}}]}).encode()
        self.send_response(200 if body["model"] != "broken" else 500)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("DIFFATTN_JUDGE_KEY", "secret")
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_judge_gives_a_second_opinion(endpoint: str) -> None:
    def half(prompt: str) -> str:
        return " A walrus" if asked(prompt)[1] < "drink" else copies(prompt)

    result = run(Planted(speaks=half), Hallucination(records=4, what=(), judge=endpoint, judge_model="wise"))
    found = result.parts["judge"]
    assert (found["model"], found["unreadable"], found["url"]) == ("wise", 0, endpoint + "/chat/completions")
    assert found["wrong"]["value"] == result.measure.value > 0
    # It takes every "unknown" for grounded, which the rule does not.
    rule = result.parts["unanswerable"]["abstained"]["value"] * result.parts["unanswerable"]["questions"]
    assert found["agreement"]["value"] == pytest.approx(1 - rule / 16)
    silent = run(Planted(speaks=half), Hallucination(records=4, what=(), judge=endpoint, judge_model="other"))
    assert (silent.parts["judge"]["unreadable"], silent.parts["judge"]["wrong"]) == (16, None)
    with pytest.raises(ValueError, match="did not answer"):
        run(Planted(), Hallucination(records=1, what=(), judge=endpoint, judge_model="broken"))
    with pytest.raises(ValueError, match="judge-model"):
        run(Planted(), Hallucination(records=1, what=(), judge=endpoint))


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("Grounded.", "grounded"),
        ("**Wrong**", "wrong"),
        ("_abstained_", "abstained"),
        ("Verdict:wrong\n", "wrong"),
        ("wrong - the text says red, it is not grounded", "wrong"),
        ("Ungrounded.", None),
        ("un-grounded", None),
        ("Wrongly put", None),
        ("Not grounded", None),
        ("It isn't wrong", None),
        ("It isn’t wrong", None),
        ("Neither wrong nor grounded", None),
        ("Hm.", None),
        ("", None),
    ],
)
def test_a_verdict_is_a_whole_word_that_nothing_denies(reply: str, found: str | None) -> None:
    assert verdict(reply) == found


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{", b"hello\r\n\r\n"])
def test_a_judge_that_hangs_up_is_named(sent: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(sent)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with pytest.raises(ValueError, match=f"the judge at {url}/chat/completions did not answer"):
            Judge(url, "wise").write(["Red?"], 16, (), GREEDY)
        thread.join()


@pytest.mark.parametrize("url", ["localhost", "http://localhost:port/v1"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ValueError, match=f"the judge at {url}/chat/completions did not answer"):
        Judge(url, "wise").write(["Red?"], 16, (), GREEDY)
