"""The web page in a real browser, with a microphone that plays a recording."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemostream.loading import embedded_clip
from tests.serve.conftest import Running, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None and not os.environ.get("NEMOSTREAM_REQUIRE_BROWSER"):
    pytest.skip("needs Chromium, which is not installed", allow_module_level=True)
playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = playwright_api.expect

QUIET_PAGE = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
PATIENCE = 30_000


@pytest.fixture(scope="module")
def microphone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the fake microphone hears again and again: the embedded clip, and a pause."""
    samples, rate = soundfile.read(embedded_clip(), dtype="float32")
    path = tmp_path_factory.mktemp("microphone") / "speech.wav"
    soundfile.write(path, np.concatenate([samples, np.zeros(2 * rate, np.float32)]), rate, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def browser(microphone: Path) -> Iterator[object]:
    flags = [
        *QUIET_PAGE,
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}",
    ]
    with playwright_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@pytest.fixture
def page(browser, server: Running) -> Iterator[object]:
    context = browser.new_context(locale="en-US", permissions=["microphone"])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith(server.http) or problems.append(request.url))
    page.goto(server.http)
    expect(page.get_by_role("status")).to_have_text("Ready.")
    yield page
    context.close()
    assert problems == []  # no script failed, and nothing was fetched from elsewhere
    server.wait_until_idle()


def words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalnum() or c.isspace()).split()


def test_live_captions_grow(page, model) -> None:
    expected = words(model.transcribe(embedded_clip()).text)
    page.get_by_label("Latency").select_option("320")
    page.get_by_role("button", name="Start microphone").click()
    captions = page.get_by_role("region", name="Captions")
    expect(captions).not_to_be_empty(timeout=PATIENCE)
    lengths, levels = [], []
    for _ in range(100):
        lengths.append(len(captions.inner_text()))
        levels.append(page.get_by_label("Level").evaluate("meter => meter.value"))
        page.wait_for_timeout(250)
        if len(words(captions.inner_text())) >= 2 * len(expected):  # more than one whole round
            break
    assert sorted(set(lengths)) == list(dict.fromkeys(lengths)), "text was taken back"
    assert len(set(lengths)) > 2, "text came at once, not as it was spoken"
    assert max(levels) > -40, "the meter did not show the speech"
    page.get_by_role("button", name="Stop microphone").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.", timeout=PATIENCE)
    heard = words(captions.inner_text())
    shared = sum(word in heard for word in expected)
    assert shared >= 0.6 * len(expected), (heard, expected)  # another rate, and the start of the loop, differ


def test_a_file_is_transcribed(page, model) -> None:
    page.get_by_label("or a file").set_input_files(str(embedded_clip()))
    expect(page.get_by_role("status")).to_contain_text("Done", timeout=PATIENCE)
    captions = page.get_by_role("region", name="Captions")
    assert captions.inner_text().strip() == model.transcribe(embedded_clip()).text.strip()
    page.get_by_role("button", name="Clear").click()
    expect(captions).to_be_empty()


def test_problems_are_shown(page, tmp_path: Path) -> None:
    nonsense = tmp_path / "notes.txt"
    nonsense.write_text("no audio")
    page.get_by_label("or a file").set_input_files(str(nonsense))
    expect(page.get_by_role("status")).to_have_attribute("data-kind", "error", timeout=PATIENCE)
    expect(page.get_by_role("status")).to_contain_text("notes.txt")


def test_everything_can_be_reached_and_has_a_name(page) -> None:
    """Every control has an accessible name, and the keyboard reaches the microphone button."""
    for element in page.locator("button, input, select, meter").all():
        labelled = element.evaluate("e => e.labels?.length || e.textContent.trim().length")
        assert labelled, element.evaluate("e => e.outerHTML")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "start":
            break
    else:
        pytest.fail("the keyboard does not reach the button")
    assert page.get_by_role("region", name="Captions").get_attribute("aria-live") == "polite"
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_key_is_asked_for(browser) -> None:
    with running(api_keys=("secret",)) as locked:
        context = browser.new_context(locale="en-US", permissions=["microphone"])
        page = context.new_page()
        page.goto(locked.http)
        expect(page.get_by_role("status")).to_contain_text("API key")
        page.get_by_label("API key").fill("secret")
        page.get_by_label("API key").press("Tab")
        expect(page.get_by_role("status")).to_have_text("Ready.")
        page.get_by_role("button", name="Start microphone").click()
        expect(page.get_by_role("region", name="Captions")).not_to_be_empty(timeout=PATIENCE)
        context.close()
