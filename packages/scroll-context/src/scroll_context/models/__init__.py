"""Language models: the protocol, the bridge to real providers, and a model that follows a script.

Importing this package loads no provider library; `connect` does, when a real model is made.
"""

from pathlib import Path

from scroll_context.contents import Usage
from scroll_context.errors import BadInput
from scroll_context.models.protocol import DEFAULT_WINDOW, Model, Reply, Request, Settings
from scroll_context.models.retries import RETRIES, OnRetry, with_retries
from scroll_context.models.scripted import ScriptedModel, answer, exec_cell, load_script
from scroll_context.plugins import how_to_install

__all__ = [
    "DEFAULT_WINDOW",
    "Model",
    "Reply",
    "Request",
    "ScriptedModel",
    "Settings",
    "Usage",
    "answer",
    "connect",
    "exec_cell",
    "load_script",
    "with_retries",
]


def connect(
    spec: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    window: int | None = None,
    settings: Settings | None = None,
    stream: bool = True,
    retries: int = RETRIES,
    on_retry: OnRetry | None = None,
) -> Model:
    """The model that `spec` names.

    `anthropic:NAME`, `openai:NAME` and all providers of pydantic-ai; `openai:NAME` with a
    `base_url` is any server that speaks OpenAI's chat completions (vLLM, Ollama, llama.cpp and so
    on); `scripted:FILE` plays a JSON script. Keys come from `api_key` or the provider's usual
    environment variable; a server at a `base_url` gets only the key given here. `window` is the
    context window in tokens: without it, the known window of the model is used, or else
    `DEFAULT_WINDOW`. Pass it for self-hosted models, whose server sets it. A request that fails
    temporarily (the provider is busy, or the connection broke) is repeated up to `retries` times,
    with increasing delays; `on_retry` is called before each (see `with_retries`).

    >>> from scroll_context import connect
    >>> model = connect("openai:qwen3", base_url="http://127.0.0.1:8000/v1", window=32_000)
    >>> model.name, model.window
    ('openai:qwen3', 32000)
    """
    if spec.startswith("scripted:"):
        script = load_script(Path(spec.removeprefix("scripted:")))
        return ScriptedModel(script, name=spec, window=window or DEFAULT_WINDOW)
    try:
        from scroll_context.models import pydantic_ai
    except ImportError as error:
        raise BadInput(
            f"{spec} needs the models extra, which is not installed ({error}). "
            f"{how_to_install('scroll-context[models]')}"
        ) from error
    model = pydantic_ai.connect(
        spec, base_url=base_url, api_key=api_key, window=window, settings=settings, stream=stream
    )
    return with_retries(model, attempts=retries + 1, on_retry=on_retry) if retries > 0 else model
