"""The standard tests of LangChain for chat models and embeddings, of a running system: ``test_judges.py`` runs them."""

import os
from typing import Any

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

BASE_URL = os.environ["OPENAI_BASE_URL"]


class TestChats(ChatModelIntegrationTests):
    """``ChatOpenAI`` over chats."""

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "assistant", "base_url": BASE_URL, "api_key": "none", "stream_usage": True}

    @property
    def supports_image_inputs(self) -> bool:
        """The model with scripted answers reads text alone; the examples show images to another one."""
        return False

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def enable_vcr_tests(self) -> bool:
        """Recordings of a server are none of it."""
        return False


class TestResponses(TestChats):
    """``ChatOpenAI`` over Responses."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "assistant", "base_url": BASE_URL, "api_key": "none", "use_responses_api": True}


class TestVectors(EmbeddingsIntegrationTests):
    """``OpenAIEmbeddings``, which does not count tokens of OpenAI's tokenizer."""

    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "my-vectors", "base_url": BASE_URL, "api_key": "none", "check_embedding_ctx_length": False}
