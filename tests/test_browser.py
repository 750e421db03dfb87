"""The page in a real browser: every page opened, a conflict restored, a filter used, and nothing
asked of any other host. The pictures stay in `screenshots/` for people to look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import showcase
from counts import full
from showcase import Showcase
from windows import Window, window

from syncd import CheckpointService

pytest.importorskip("playwright", reason="THE BROWSER IS NOT TESTED: pip install playwright")
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PICTURES = Path(__file__).parent.parent / "screenshots"
DESKTOP, PHONE = (1280, 860), (390, 844)
PAGES = ("/", "/tasks", "/conflicts", "/agents", "/cost", "/audit", "/fleet")
FIRST = "/task?id=dark-mode"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's own. Where packages can be installed, it must be there."""
    if CHROMIUM is None:
        assert not (os.environ.get("CI") and shutil.which("apt-get")), "chromium is missing in CI"
        pytest.skip("THE BROWSER IS NOT TESTED: apt-get install chromium")
    with sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Showcase:
    return showcase.built(tmp_path_factory.mktemp("browser") / "home")


class Visit:
    """A browser's window in which the link was opened, and all that went wrong there."""

    def __init__(self, page: Page, made: Window) -> None:
        self.page = page
        self.host = f"127.0.0.1:{made.port}"
        self.wrong: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: self.asked.add(urlsplit(request.url).netloc))
        if made.cookie:
            name, _, value = made.cookie.partition("=")
            page.context.add_cookies([{"name": name, "value": value, "url": f"http://{self.host}"}])
            page.goto(f"http://{self.host}/")
        else:
            page.goto(made.link)
            page.wait_for_url(f"http://{self.host}/")

    def go(self, path: str) -> None:
        answer = self.page.goto(f"http://{self.host}{path}")
        assert answer is not None
        assert answer.status == 200, path

    def wider_than_the_window(self) -> bool:
        return bool(self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        ))  # fmt: skip

    def picture(self, name: str) -> None:
        PICTURES.mkdir(exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


@contextmanager
def visit(
    browser: Browser, made: Window, size: tuple[int, int] = DESKTOP, **options: Any
) -> Iterator[Visit]:
    """At its end, nothing may have gone wrong, and nobody else been asked."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
    try:
        opened = Visit(context.new_page(), made)
        yield opened
        assert opened.wrong == []
        assert opened.asked == {opened.host}
    finally:
        context.close()


@contextmanager
def arrival(browser: Browser, home: Path) -> Iterator[Visit]:
    """Through the link that is printed."""
    with closing(Window(home)) as made, visit(browser, made) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(shown: Showcase) -> Iterator[Window]:
    """For tests that only look."""
    with window(shown.home) as made:
        yield made


def every(shown: Showcase) -> dict[str, str]:
    """Each page under a name."""
    return {
        **{path.strip("/") or "overview": path for path in PAGES},
        "task": FIRST,
        "task-damaged": "/task?id=search-index",
        "task-thread": f"/task?id={showcase.THREAD}",
        "checkpoint": f"/checkpoint?id={shown.final}",
        "checkpoint-damaged": f"/checkpoint?id={shown.damaged}",
        "conflict": f"/conflict?id={shown.conflict}",
    }


@pytest.mark.parametrize(
    ("scheme", "size", "look"),
    full(
        [("light", DESKTOP, "desktop-light"), ("dark", PHONE, "phone-dark")],
        [("light", DESKTOP, "desktop-light"), ("dark", PHONE, "phone-dark"),
         ("dark", DESKTOP, "desktop-dark"), ("light", PHONE, "phone-light")],
    ),
)  # fmt: skip
def test_every_page_opens_and_fits(
    browser: Browser, served: Window, shown: Showcase, scheme: str, size: tuple[int, int], look: str
) -> None:
    with visit(browser, served, size, color_scheme=scheme) as opened:
        for name, path in every(shown).items():
            opened.go(path)
            assert opened.page.locator("h1").count() == 1
            assert not opened.wider_than_the_window(), path
            opened.picture(f"{name}-{look}")


def test_a_conflict_is_restored_with_the_keyboard_and_what_agents_write_appears_by_itself(
    browser: Browser, shown: Showcase, tmp_path: Path
) -> None:
    shutil.copytree(shown.home, tmp_path / "home")
    with arrival(browser, tmp_path / "home") as opened:
        page = opened.page
        page.get_by_role("navigation").get_by_role("link", name="Conflicts").focus()
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Decide").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Restore what lost").focus()
        page.keyboard.press("Enter")
        page.get_by_role("status").wait_for()
        assert "current again" in page.get_by_role("status").inner_text()
        opened.picture("conflict-restored")
        opened.go("/tasks")
        page.locator("#live.on").wait_for()
        with closing(CheckpointService(home=tmp_path / "home")) as service:
            service.create_checkpoint("written-just-now", "newcomer")
        page.get_by_role("link", name="written-just-now").wait_for()
    with closing(CheckpointService(home=tmp_path / "home")) as service:
        latest = service.get_latest_checkpoint("checkout-redesign")
        assert latest is not None
        assert latest.execution_state.current_focus == "guest checkout"


def test_a_filter_is_used_and_a_checkpoint_reached_from_it(
    browser: Browser, served: Window
) -> None:
    with visit(browser, served) as opened:
        page = opened.page
        opened.go("/tasks")
        page.keyboard.press("/")
        page.keyboard.type("dark")
        page.keyboard.press("Enter")
        page.wait_for_url("**/tasks?q=dark*")
        assert page.locator("tbody tr").count() == 1
        page.get_by_role("link", name="dark-mode").click()
        page.locator("a.step").first.click()
        page.get_by_text("Changed since its parent").wait_for()


def test_without_javascript_every_page_says_the_same(
    browser: Browser, served: Window, shown: Showcase
) -> None:
    with visit(browser, served, java_script_enabled=False) as opened:
        for path in every(shown).values():
            opened.go(path)
            assert opened.page.locator("main h1").count() == 1
        opened.go("/tasks")
        opened.page.locator("#status").select_option("escalated")
        opened.page.get_by_role("button", name="Filter").click()
        assert opened.page.locator("tbody tr").count() == 1


def test_script_in_a_name_does_not_run(browser: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    with closing(CheckpointService(home=tmp_path / "home")) as service:
        name = service.create_checkpoint(
            evil, evil, {"completed_items": [evil], "current_focus": evil},
            {"key_decisions": [evil]}, {"files_modified": [evil]},
        ).metadata.checkpoint_id  # fmt: skip
    with arrival(browser, tmp_path / "home") as opened:
        opened.page.on("dialog", lambda said: opened.wrong.append(said.message))
        for path in (*PAGES, f"/checkpoint?id={name}"):
            opened.go(path)
        opened.page.locator("main a", has_text="<img").first.click()
        assert "alert(2)" in opened.page.locator("h1").inner_text()
