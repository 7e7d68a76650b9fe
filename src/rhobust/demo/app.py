"""The demo's page: gradio components around the answers; everything that computes is in `DemoClassifier`."""

import os
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from rhobust.data.images import pillow_image
from rhobust.demo.classifier import DemoClassifier, LiveCertificate
from rhobust.demo.inputs import decode_drawing, fit_drawing, fit_photo
from rhobust.demo.page import answer, attacked, corrupted, failed, intro, waiting
from rhobust.user_code import import_extra

ONE_AT_A_TIME = "network"
"""Name of the queue that all events share: two passes through one network at once would disturb each other."""
CONTENT_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:;"
    " style-src 'self' 'unsafe-inline'; connect-src 'self' ws: wss: data: blob:; frame-ancestors 'self'"
    " https://huggingface.co https://*.hf.space"
)
"""What a browser lets the page do: nothing from other places is loaded, and nothing is sent there."""


def import_gradio() -> Any:
    """The package gradio, with its statistics switched off; a missing one is an error of one line."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    return import_extra("gradio", "demo", "the demo needs")


def build_app(classifier: DemoClassifier) -> Any:
    """The page of a classifier, a `gradio.Blocks`; `serve` opens it.

    Args:
        classifier: What answers.
    """
    gradio = import_gradio()
    classifier.check()
    events = {
        "concurrency_limit": 1,
        "concurrency_id": ONE_AT_A_TIME,
        "show_progress": "hidden",
        "api_visibility": "private",
    }
    largest = round(4 * classifier.sigma, 2)

    def certify(image: Any) -> Iterator[tuple[str, Any, Any, str, str]]:
        """Stream the certificate of a fitted image; attack and corruptions of another image are cleared."""
        if image is None:
            yield waiting(), None, None, "", ""
            return
        live: LiveCertificate | None = None
        for live in classifier.certify(image):
            yield answer(classifier, image, live), image, live, "", ""

    def from_photo(photo: Any) -> Iterator[tuple[str, Any, Any, str, str]]:
        yield from _or_error(lambda: certify(None if photo is None else fit_photo(photo, classifier)))

    def from_drawing(stroke: gradio.EventData) -> Iterator[tuple[str, Any, Any, str, str]]:
        yield from _or_error(lambda: certify(fit_drawing(decode_drawing(stroke.drawing), classifier)))

    def from_example(choice: gradio.SelectData) -> Iterator[tuple[str, Any, Any, str, str]]:
        yield from _or_error(lambda: certify(classifier.examples[choice.index]))

    def attack(image: Any, live: LiveCertificate | None, radius: float) -> Iterator[str]:
        if image is None or live is None or live.selected is None:
            yield failed("First give the network an image.")
            return
        yield '<section class="rb-result"><p class="rb-proof">Searching for a change …</p></section>'
        found = classifier.attack(image, live.selected, radius)
        yield attacked(classifier, image, live, found, radius)

    def corrupt(image: Any, live: LiveCertificate | None, severity: float) -> Iterator[str]:
        if image is None or live is None:
            yield failed("First give the network an image.")
            return
        yield '<section class="rb-result"><p class="rb-proof">Counting votes …</p></section>'
        yield corrupted(classifier, live, classifier.corruptions(image, int(severity)))

    with gradio.Blocks(title="rhobust demo", analytics_enabled=False, fill_width=False) as app:
        image, certificate = gradio.State(None), gradio.State(None)
        gradio.HTML(intro(classifier))
        with gradio.Row(equal_height=False):
            with gradio.Column(scale=5, min_width=300):
                with gradio.Tabs():
                    with gradio.Tab("Drop an image"):
                        photo = gradio.Image(
                            type="pil",
                            image_mode=None,
                            sources=["upload", "clipboard"],
                            show_label=False,
                            height=300,
                            buttons=[],
                            elem_id="rb-photo",
                        )
                    with gradio.Tab("Draw"):
                        drawing = gradio.HTML(
                            '<canvas width="360" height="360" aria-label="canvas to draw on"></canvas>'
                            '<button type="button">Clear</button>',
                            js_on_load=_file("canvas.js"),
                            elem_id="rb-drawing",
                        )
                chosen = None
                if len(classifier.examples):
                    gradio.HTML('<p class="rb-hint">or try one of these</p>')
                    chosen = gradio.Gallery(
                        [_shown(one) for one in classifier.examples],
                        label="Examples",
                        show_label=False,
                        columns=8,
                        height="auto",
                        object_fit="contain",
                        allow_preview=False,
                        buttons=[],
                        elem_id="rb-examples",
                    )
            with gradio.Column(scale=6, min_width=300, elem_classes="rb-first"):
                result = gradio.HTML(waiting(), elem_id="rb-answer")
        with gradio.Row(equal_height=False):
            with gradio.Column(min_width=300, elem_classes="rb-panel"):
                gradio.HTML("<h2>Attack it</h2><p>Search for a small change that changes the answer.</p>")
                radius = gradio.Slider(
                    0.01, largest, value=classifier.sigma, step=0.01, label="Largest L2 distance of the change"
                )
                start_attack = gradio.Button("Attack", variant="primary", elem_id="rb-attack")
                attack_result = gradio.HTML("", elem_id="rb-attack-result")
            with gradio.Column(min_width=300, elem_classes="rb-panel"):
                gradio.HTML("<h2>Corrupt it</h2><p>The same image after compression, blur, noise, light and fog.</p>")
                severity = gradio.Slider(1, 5, value=1, step=1, label="Severity")
                start_corruptions = gradio.Button("Corrupt", variant="primary", elem_id="rb-corrupt")
                corruption_result = gradio.HTML("", elem_id="rb-corruption-result")
        answers = [result, image, certificate, attack_result, corruption_result]
        photo.change(from_photo, photo, answers, trigger_mode="always_last", **events)
        drawing.input(from_drawing, None, answers, trigger_mode="always_last", **events)
        if chosen is not None:
            chosen.select(from_example, None, answers, trigger_mode="always_last", **events)
        start_attack.click(attack, [image, certificate, radius], attack_result, **events)
        start_corruptions.click(corrupt, [image, certificate, severity], corruption_result, **events)
    return app


def _or_error(stream: Any) -> Iterator[tuple[str, Any, Any, str, str]]:
    """A stream of answers; an image or a network that cannot be used is an answer of one line."""
    try:
        yield from stream()
    except (ValueError, OSError) as error:
        yield failed(str(error)), None, None, "", ""


def _file(name: str) -> str:
    """A text file of this package."""
    return files("rhobust.demo").joinpath(name).read_text(encoding="utf-8")


def _shown(image: Any) -> Any:
    """An image for a gallery, enlarged without blur."""
    from PIL.Image import Resampling

    small = pillow_image(image.numpy())
    factor = max(1, -(-96 // min(small.size)))
    return small.resize((small.width * factor, small.height * factor), Resampling.NEAREST)


class _ContentPolicy:
    """Adds the content policy to every answer of the server."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", CONTENT_POLICY.encode())
                message = {**message, "headers": [*message.get("headers", []), policy]}
            await send(message)

        await self.app(scope, receive, with_policy if scope["type"] == "http" else send)


def serve(
    app: Any, *, host: str = "127.0.0.1", port: int | None = None, share: bool = False, block: bool = True
) -> tuple[str, str | None]:
    """Open a page of `build_app` on this machine; it loads nothing from other places and sends nothing there.

    Args:
        app: The page.
        host: Address to listen on.
        port: Port; None for the first free one from 7860.
        share: Whether gradio opens a tunnel through its own servers, so that others can reach the page.
        block: Whether to wait until the process is interrupted.

    Returns:
        The local address, and that of the tunnel, if there is one.

    Raises:
        ValueError: The port is taken.
    """
    gradio = import_gradio()
    try:
        _, local, public = app.launch(
            server_name=host,
            server_port=port,
            share=share,
            quiet=True,
            prevent_thread_lock=True,
            inbrowser=False,
            ssr_mode=False,
            footer_links=[],
            theme=gradio.themes.Base(
                primary_hue="indigo",
                neutral_hue="slate",
                font=["system-ui", "sans-serif"],
                font_mono=["ui-monospace", "monospace"],
            ),
            app_kwargs={"middleware": [(_ContentPolicy, (), {})]},
            css=_file("style.css"),
        )
    except OSError as error:
        taken = "ports from 7860 on" if port is None else f"port {port}"
        raise ValueError(f"{taken} must be free on {host}, but {str(error).partition('. ')[0]}") from None
    if block:
        app.block_thread()
    return local, public
