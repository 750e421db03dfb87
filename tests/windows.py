"""Windows into a home: `syncd ui` as a process of its own, asked over a socket."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

SYNCD = str(Path(sys.executable).with_name("syncd"))
_SECONDS = 30


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Window:
    """The process, its link, and the cookie that the link was exchanged for."""

    def __init__(self, home: Path, *words: str, **settings: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [SYNCD, "--home", str(home), "ui", "--no-browser", "--json", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **settings},
        )  # fmt: skip
        assert self.process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            said += line
        self.link: str = json.loads(said)["url"]
        self.port: int = json.loads(said)["port"]
        self.cookie = ""

    def enter(self) -> Window:
        parts = urlsplit(self.link)
        answer = self.get(f"{parts.path}?{parts.query}")
        assert answer.status == 200, answer.text
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return self

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: str = ""
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        wanted = {"cookie": self.cookie, **(headers or {})}
        try:
            connection.request(method, path, body or None, wanted)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, text)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, {k.replace("_", "-"): v for k, v in headers.items()})

    def page(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status == 200, answer.text
        return answer.text

    def post(self, path: str, headers: dict[str, str] | None = None, **form: str) -> Answer:
        """As a form of the page sends it, but for what the test changes."""
        usual = {"origin": f"http://127.0.0.1:{self.port}", "sec-fetch-site": "same-origin",
                 "content-type": "application/x-www-form-urlencoded"}  # fmt: skip
        wanted = {k: v for k, v in {**usual, **(headers or {})}.items() if v}
        return self.ask("POST", path, wanted, urlencode(form))

    def word(self) -> str:
        """What the forms of the page say to show that they are its own."""
        text = self.page("/audit")
        return text.partition('name="word" value="')[2].partition('"')[0]

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """How it ended, and what it said."""
        self.process.send_signal(number)
        try:
            out, err = self.process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
        return self.process.returncode, out, err

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def window(home: Path, *words: str, **settings: str) -> Iterator[Window]:
    opened = Window(home, *words, **settings)
    try:
        yield opened.enter()
    finally:
        opened.close()


# --- what stands in a page ------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags and attributes as a browser sees them, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def addresses(self) -> set[str]:
        names = ("href", "src", "action", "formaction", "data", "xlink:href", "poster")
        return {attrs[name] for _, attrs in self.tags for name in names if name in attrs}
