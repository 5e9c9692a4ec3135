"""Another model's verdicts: how its replies are read, and what happens where there is none."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from diffattn.evals.hallucination import Hallucination
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
