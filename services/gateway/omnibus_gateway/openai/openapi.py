"""OpenAI routes of the OpenAPI document, generated from their structs."""

from typing import Any

import msgspec

from omnibus.encoding.audio import MIME
from omnibus_gateway.openai import embeddings, files, images, models, rerank, speech, tokens, transcriptions, videos
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import ChatCompletion, ChatCompletionChunk
from omnibus_gateway.openai.errors import ErrorBody
from omnibus_gateway.openai.openapi_routes import (
    BATCH_SHAPES,
    FAILURES,
    PART_FORM,
    REALTIME_SHAPES,
    REF,
    RESPONSE_SHAPES,
    UPLOAD_SHAPES,
    batch_paths,
    event_content,
    failure_response,
    form_content,
    id_parameter,
    json_content,
    operation,
    post_operation,
    query_parameters,
    realtime_paths,
    response_paths,
    schema_ref,
    upload_paths,
    with_optional_types,
)

PATH = "/v1/chat/completions"
#: The route that resumes a streamed answer.
EVENTS = f"{PATH}/{{token}}/events"

_SHAPES = (
    ChatRequest,
    ChatCompletion,
    ChatCompletionChunk,
    ErrorBody,
    *RESPONSE_SHAPES,
    *REALTIME_SHAPES,
    models.ModelObject,
    models.ModelList,
    images.ImageRequest,
    images.EditForm,
    images.EditRequest,
    images.ImagesResponse,
    images.PartialImage,
    images.CompletedImage,
    embeddings.EmbeddingRequest,
    embeddings.EmbeddingList,
    rerank.RerankRequest,
    rerank.RerankResponse,
    tokens.TokenizeRequest,
    tokens.TokenizeResponse,
    tokens.DetokenizeRequest,
    tokens.DetokenizeResponse,
    speech.SpeechRequest,
    speech.SpeechDelta,
    speech.SpeechDone,
    transcriptions.TranscriptionForm,
    transcriptions.Transcription,
    transcriptions.VerboseTranscription,
    transcriptions.TranslationForm,
    transcriptions.Translation,
    transcriptions.VerboseTranslation,
    transcriptions.TranscriptDelta,
    transcriptions.TranscriptDone,
    files.FileForm,
    files.FileObject,
    files.FileList,
    files.FileDeleted,
    *UPLOAD_SHAPES,
    *BATCH_SHAPES,
    videos.VideoRequest,
    videos.Video,
    videos.VideoList,
    videos.VideoDeleted,
)
_FILE = {"type": "string", "format": "binary"}


def openapi_components() -> dict[str, Any]:
    """Return all schemas by name, for ``components.schemas``."""
    _, components = msgspec.json.schema_components(_SHAPES, ref_template=REF)
    several = {"type": "array", "items": _FILE, "minItems": 1}
    return {
        **with_optional_types(components),
        "EditForm": _with_files(components["EditForm"], image=several),
        "FileForm": _with_files(components["FileForm"], file=_FILE),
        **PART_FORM,
        "TranscriptionForm": _with_files(components["TranscriptionForm"], file=_FILE),
    }


def openapi_paths() -> dict[str, Any]:
    """Return the path items of all routes."""
    return {
        PATH: {"post": _chat_operation()},
        EVENTS: {"get": _continue_chat_operation()},
        **response_paths(),
        **realtime_paths(),
        images.PATH: {"post": _generation_operation()},
        images.EDITS: {"post": _edit_operation()},
        embeddings.PATH: {"post": _embeddings_operation()},
        rerank.PATH: {"post": _rerank_operation()},
        **_token_paths(),
        speech.PATH: {"post": _speech_operation()},
        transcriptions.PATH: {"post": _transcription_operation()},
        transcriptions.TRANSLATIONS: {"post": _translation_operation()},
        **_model_paths(),
        **_file_paths(),
        **upload_paths(),
        **_video_paths(),
        **batch_paths(),
    }


def _chat_operation() -> dict[str, Any]:
    events = "The completion. With `stream`: server-sent events of one chunk each, then `[DONE]`."
    return post_operation(
        "create_chat_completion",
        "Answer a conversation with text, audio or both.",
        "Chat",
        json_content("ChatRequest"),
        {
            "description": events,
            "content": {**json_content("ChatCompletion"), **event_content("ChatCompletionChunk")},
        },
    )


def _continue_chat_operation() -> dict[str, Any]:
    """Describe the route that resumes a streamed answer."""
    last = "Id of the last received event; without it the stream starts from the beginning."
    header = {"name": "Last-Event-ID", "in": "header", "description": last, "schema": {"type": "string"}}
    rest = {"description": "The events after the last received one.", "content": event_content("ChatCompletionChunk")}
    failures = {status: failure_response(text) for status, text in FAILURES.items()}
    failures |= {
        "404": failure_response("No streamed answer has this token, or it has expired."),
        "409": failure_response("Another connection already resumed the answer."),
        "502": failure_response("The regenerated answer differs: send the request again."),
    }
    continuing = operation("continue_chat_completion", "Resume a streamed answer.", "Chat", {"200": rest, **failures})
    return {**continuing, "parameters": [id_parameter("token"), header]}


def _generation_operation() -> dict[str, Any]:
    return post_operation(
        "create_image", "Generate images from a prompt.", "Images", json_content("ImageRequest"), _images_response()
    )


def _edit_operation() -> dict[str, Any]:
    return post_operation(
        "edit_image",
        "Generate images from a prompt and images.",
        "Images",
        {**form_content("EditForm"), **json_content("EditRequest")},
        _images_response(),
    )


def _images_response() -> dict[str, Any]:
    description = "The images. With `stream`: server-sent events of partial images, then the completed one."
    return {
        "description": description,
        "content": {**json_content("ImagesResponse"), **event_content("PartialImage", "CompletedImage")},
    }


def _embeddings_operation() -> dict[str, Any]:
    response = {"description": "One vector per text.", "content": json_content("EmbeddingList")}
    return post_operation("create_embedding", "Embed texts.", "Embeddings", json_content("EmbeddingRequest"), response)


def _token_paths() -> dict[str, Any]:
    tokenized = {"description": "The tokens.", "content": json_content("TokenizeResponse")}
    text = {"description": "The text.", "content": json_content("DetokenizeResponse")}
    return {
        tokens.TOKENIZE: {
            "post": post_operation(
                "tokenize",
                "Return the tokens of a prompt or chat.",
                "Tokens",
                json_content("TokenizeRequest"),
                tokenized,
            )
        },
        tokens.DETOKENIZE: {
            "post": post_operation(
                "detokenize", "Return the text of tokens.", "Tokens", json_content("DetokenizeRequest"), text
            )
        },
    }


def _rerank_operation() -> dict[str, Any]:
    response = {"description": "The documents, most relevant first.", "content": json_content("RerankResponse")}
    return post_operation(
        "rerank", "Sort documents by relevance to a query.", "Reranking", json_content("RerankRequest"), response
    )


def _speech_operation() -> dict[str, Any]:
    sound = {mime: {"schema": _FILE} for mime in sorted(MIME.values())}
    description = "The audio, sent while it is generated. With `stream_format` sse: events with pieces of it."
    return post_operation(
        "create_speech",
        "Synthesize speech from a text.",
        "Audio",
        json_content("SpeechRequest"),
        {"description": description, "content": {**sound, **event_content("SpeechDelta", "SpeechDone")}},
    )


def _transcription_operation() -> dict[str, Any]:
    either = {
        "application/json": {"schema": {"anyOf": [schema_ref("Transcription"), schema_ref("VerboseTranscription")]}}
    }
    text = {"text/plain": {"schema": {"type": "string"}}}
    return post_operation(
        "create_transcription",
        "Transcribe audio to text.",
        "Audio",
        form_content("TranscriptionForm"),
        {
            "description": "The text. With `stream`: server-sent events with pieces of it.",
            "content": {**either, **text, **event_content("TranscriptDelta", "TranscriptDone")},
        },
    )


def _translation_operation() -> dict[str, Any]:
    either = {"application/json": {"schema": {"anyOf": [schema_ref("Translation"), schema_ref("VerboseTranslation")]}}}
    content = {**either, "text/plain": {"schema": {"type": "string"}}}
    response = {"description": "The English text.", "content": content}
    return post_operation(
        "create_translation", "Translate speech to English text.", "Audio", form_content("TranslationForm"), response
    )


def _model_paths() -> dict[str, Any]:
    list_response = {"description": "The models of the plan and of apps.", "content": json_content("ModelList")}
    about = {"description": "The model.", "content": json_content("ModelObject")}
    not_found = {"404": failure_response("The model is unknown.")}
    return {
        models.PATH: {
            "get": operation(
                "list_models", "List the models that this gateway serves.", "Models", {"200": list_response}
            )
        },
        models.MODEL: {
            "parameters": [id_parameter("model")],
            "get": operation("show_model", "Retrieve a model.", "Models", {"200": about, **not_found}),
        },
    }


def _file_paths() -> dict[str, Any]:
    bytes_ = {"description": "The file.", "content": {"application/octet-stream": {"schema": _FILE}}}
    not_found = {"404": failure_response("The file was not found, or has expired.")}
    about = {"description": "The file's metadata.", "content": json_content("FileObject")}
    delete_response = {"description": "The file is removed.", "content": json_content("FileDeleted")}
    page = {"description": "Your files.", "content": json_content("FileList")}
    wrong = {"400": failure_response("The request is invalid; `param` names the field.")}
    upload_operation = post_operation("upload_file", "Upload a file.", "Files", form_content("FileForm"), about)
    list_operation = operation("list_files", "List your files.", "Files", {"200": page, **wrong})
    return {
        files.FILES: {
            "post": upload_operation,
            "get": {**list_operation, "parameters": query_parameters(files.FileQuery)},
        },
        files.FILE: {
            "parameters": [id_parameter("file_id")],
            "get": operation("show_file", "Retrieve a file's metadata.", "Files", {"200": about, **not_found}),
            "delete": operation("remove_file", "Remove a file.", "Files", {"200": delete_response, **not_found}),
        },
        files.CONTENT: {
            "parameters": [id_parameter("file_id")],
            "get": operation("fetch_file", "Download a file.", "Files", {"200": bytes_, **not_found}),
        },
    }


def _video_paths() -> dict[str, Any]:
    not_found = {"404": failure_response("The video was not found, or has expired.")}
    job = {"description": "The video and its progress.", "content": json_content("Video")}
    page = {"description": "Videos in the order of their requests.", "content": json_content("VideoList")}
    delete_response = {
        "description": "The video is removed; if it was still being generated, its generation is cancelled.",
        "content": json_content("VideoDeleted"),
    }
    file = {"video/mp4": {"schema": _FILE}, "image/webp": {"schema": _FILE}}
    content_response = {
        "description": "The file. With a `Range` header: status 206 and that part of it.",
        "content": file,
    }
    early = {"400": failure_response("The video is not completed."), **not_found}
    body = {**json_content("VideoRequest"), **form_content("VideoRequest")}
    create_operation = post_operation(
        "create_video", "Start a job that generates a video from a prompt.", "Videos", body, job
    )
    wrong = {"400": failure_response("The query is invalid; `param` names the field.")}
    list_operation = operation("list_videos", "List videos.", "Videos", {"200": page, **wrong, **not_found})
    return {
        videos.PATH: {
            "post": create_operation,
            "get": {**list_operation, "parameters": query_parameters(videos.ListQuery)},
        },
        videos.VIDEO: {
            "parameters": [id_parameter("video_id")],
            "get": operation("show_video", "Retrieve a video's progress.", "Videos", {"200": job, **not_found}),
            "delete": operation(
                "remove_video", "Remove a video, complete or not.", "Videos", {"200": delete_response, **not_found}
            ),
        },
        videos.CONTENT: {
            "parameters": [id_parameter("video_id"), *query_parameters(videos.ContentQuery)],
            "get": operation("fetch_video", "Download a video.", "Videos", {"200": content_response, **early}),
        },
    }


def _with_files(schema: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """Add the form's files, all of them required, to its schema."""
    return {
        **schema,
        "properties": {**parts, **schema["properties"]},
        "required": [*parts, *schema.get("required", ())],
    }
