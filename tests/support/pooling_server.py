"""A server with vLLM's /v1/models and /pooling, on plain transformers: it knows the exported folder, nothing of ours.

Requests and answers have the shape that vLLM documents. vLLM itself is not run here.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Idefics3Processor,
)


class TokenStates:
    """The last hidden state of every token of a prompt, unit vectors as vLLM gives them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        if (folder / "preprocessor_config.json").is_file():
            self.image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
            self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()
        else:
            self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.lock = threading.Lock()

    def of_text(self, prompt: str | list[int]) -> torch.Tensor:
        if isinstance(prompt, list):
            return self._forward({"input_ids": torch.tensor([prompt])})
        return self._run(prompt, {})

    def of_messages(self, messages: list[dict[str, Any]]) -> torch.Tensor:
        (message,) = messages
        parts = [{"type": "image"} if part["type"] == "image_url" else part for part in message["content"]]
        prompt = self.tokenizer.apply_chat_template([{**message, "content": parts}], tokenize=False)
        urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
        if not urls:
            return self._run(prompt, {})
        files = [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in urls]
        images = [Image.open(BytesIO(file)).convert("RGB") for file in files]
        if "<image>" in prompt:
            return self._forward(self._processor()(text=[prompt], images=[images], return_tensors="pt"))
        image = self.image_processor(images, return_tensors="pt")
        count = int(image["image_grid_thw"].prod()) // self.image_processor.merge_size**2
        return self._run(prompt.replace("<|image_pad|>", "<|image_pad|>" * count), dict(image))

    def _processor(self) -> Idefics3Processor:
        """The processor of transformers with the settings of the folder, as a server makes it."""
        settings = json.loads((self.folder / "processor_config.json").read_text())
        return Idefics3Processor(self.image_processor, self.tokenizer, image_seq_len=settings["image_seq_len"])

    def _run(self, prompt: str, image: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
        if hasattr(self.model.config, "image_token_id"):
            image = {**image, "mm_token_type_ids": (inputs["input_ids"] == self.model.config.image_token_id).int()}
        return self._forward({**inputs, **image})

    def _forward(self, inputs: Any) -> torch.Tensor:
        with self.lock, torch.no_grad():
            states = self.model.model(**inputs).last_hidden_state[0]
        return torch.nn.functional.normalize(states, dim=-1)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("task") != "token_embed":
            raise ValueError(f"Unsupported task: {body.get('task')!r}")
        if "messages" in body:
            states = [self.of_messages(body["messages"])]
        else:
            states = [self.of_text(prompt) for prompt in body["input"]]
        in_base64 = body.get("encoding_format") == "base64"
        assert not in_base64 or (body["embed_dtype"], body["endianness"]) == ("float32", "little")
        data = [
            base64.b64encode(rows.numpy().astype(np.dtype("<f4")).tobytes()).decode() if in_base64 else rows.tolist()
            for rows in states
        ]
        tokens = sum(len(rows) for rows in states)
        return {
            "id": "pooling-1",
            "object": "list",
            "created": 0,
            "model": body["model"],
            "data": [{"index": i, "object": "pooling", "data": item} for i, item in enumerate(data)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
        }


@contextmanager
def serve(answer: Any, root: Path | str, port: int = 0, wanted: str = "") -> Iterator[str]:
    """Serve `answer(body) -> dict` at /pooling, for a model at `root`, to who has the `wanted` token; give the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if wanted and self.headers["Authorization"] != f"Bearer {wanted}":
                return self._send(401, {"error": "Unauthorized"})
            return self._send(
                200, {"object": "list", "data": [{"id": "randslot", "object": "model", "root": str(root)}]}
            )

        def do_POST(self) -> None:
            if wanted and self.headers["Authorization"] != f"Bearer {wanted}":
                return self._send(401, {"error": "Unauthorized"})
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._send(200, answer(body))
            except ValueError as error:
                self._send(400, {"error": {"message": str(error), "type": "BadRequestError", "code": 400}})

        def _send(self, status: int, content: Any) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that gave up waiting
                self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
