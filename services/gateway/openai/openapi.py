"""The OpenAI routes for the OpenAPI document, from the same structs that read and write them."""

from typing import Any

import msgspec

from omnibus.encoding.audio import MIME
from services.gateway.openai import completions, embeddings, files, images, models, speech, transcriptions, videos
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.chat_response import ChatCompletion
from services.gateway.openai.chat_stream import ChatCompletionChunk
from services.gateway.openai.errors import ErrorBody

PATH = "/v1/chat/completions"
#: The rest of a streamed answer.
EVENTS = f"{PATH}/{{token}}/events"

_REF = "#/components/schemas/{name}"
_FAILURES = {
    "400": "The request or one of its media items cannot be used; `param` names the place.",
    "401": "The API key is missing or unknown.",
    "404": "The model is unknown.",
    "413": "A limit on bytes, pixels, seconds or items is exceeded.",
    "429": "Overloaded: try again after Retry-After seconds.",
    "502": "A stage failed on this request; `stage` names it.",
    "503": "No live executor for a stage.",
    "504": "The deadline passed.",
}
_SHAPES = (
    ChatRequest,
    ChatCompletion,
    ChatCompletionChunk,
    ErrorBody,
    completions.CompletionRequest,
    completions.Completion,
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
    speech.SpeechRequest,
    speech.SpeechDelta,
    speech.SpeechDone,
    transcriptions.TranscriptionForm,
    transcriptions.Transcription,
    transcriptions.VerboseTranscription,
    transcriptions.TranscriptDelta,
    transcriptions.TranscriptDone,
    files.FileForm,
    files.FileObject,
    files.FileList,
    files.FileDeleted,
    videos.VideoRequest,
    videos.Video,
    videos.VideoList,
    videos.VideoDeleted,
)
_FILE = {"type": "string", "format": "binary"}


def openapi_components() -> dict[str, Any]:
    """The schemas of requests, answers, stream chunks and errors, by name, for ``components.schemas``."""
    _, components = msgspec.json.schema_components(_SHAPES, ref_template=_REF)
    several = {"type": "array", "items": _FILE, "minItems": 1}
    return {
        **components,
        "EditForm": _with_files(components["EditForm"], image=several),
        "FileForm": _with_files(components["FileForm"], file=_FILE),
        "TranscriptionForm": _with_files(components["TranscriptionForm"], file=_FILE),
    }


def openapi_paths() -> dict[str, Any]:
    """The path items of all routes."""
    return {
        PATH: {"post": _chat_operation()},
        EVENTS: {"get": _continue_chat_operation()},
        completions.PATH: {"post": _completion_operation()},
        images.PATH: {"post": _generation_operation()},
        images.EDITS: {"post": _edit_operation()},
        embeddings.PATH: {"post": _embeddings_operation()},
        speech.PATH: {"post": _speech_operation()},
        transcriptions.PATH: {"post": _transcription_operation()},
        **_model_paths(),
        **_file_paths(),
        **_video_paths(),
    }


def _chat_operation() -> dict[str, Any]:
    events = "The answer; with `stream`, server-sent events that each hold one chunk, then `[DONE]`."
    return _post_operation(
        "create_chat_completion",
        "Answer a conversation with text, sound or both.",
        "Chat",
        _json_content("ChatRequest"),
        {
            "description": events,
            "content": {**_json_content("ChatCompletion"), **_event_content("ChatCompletionChunk")},
        },
    )


def _continue_chat_operation() -> dict[str, Any]:
    """Continuing a streamed answer."""
    last = "Id of the last event that came; without it the answer is sent from its beginning."
    header = {"name": "Last-Event-ID", "in": "header", "description": last, "schema": {"type": "string"}}
    rest = {"description": "The events after that one.", "content": _event_content("ChatCompletionChunk")}
    failures = {status: _failure_response(text) for status, text in _FAILURES.items()}
    failures |= {
        "404": _failure_response("No streamed answer has this token, or it has expired."),
        "409": _failure_response("The answer is continued on another connection."),
        "502": _failure_response("The answer came out differently: send the request again."),
    }
    operation = _operation(
        "continue_chat_completion", "The rest of a streamed answer.", "Chat", {"200": rest, **failures}
    )
    return {**operation, "parameters": [_id_parameter("token"), header]}


def _completion_operation() -> dict[str, Any]:
    events = "The completions; with `stream`, server-sent events that each hold some text of one, then `[DONE]`."
    return _post_operation(
        "create_completion",
        "Go on with texts as they stand.",
        "Completions",
        _json_content("CompletionRequest"),
        {"description": events, "content": {**_json_content("Completion"), **_event_content("Completion")}},
    )


def _generation_operation() -> dict[str, Any]:
    return _post_operation(
        "create_image", "Make pictures of a text.", "Images", _json_content("ImageRequest"), _images_response()
    )


def _edit_operation() -> dict[str, Any]:
    return _post_operation(
        "edit_image",
        "Make pictures of a text and pictures.",
        "Images",
        {**_form_content("EditForm"), **_json_content("EditRequest")},
        _images_response(),
    )


def _images_response() -> dict[str, Any]:
    said = "The pictures; with `stream`, server-sent events: partial images, then the completed one."
    return {
        "description": said,
        "content": {**_json_content("ImagesResponse"), **_event_content("PartialImage", "CompletedImage")},
    }


def _embeddings_operation() -> dict[str, Any]:
    made = {"description": "A vector of each text.", "content": _json_content("EmbeddingList")}
    return _post_operation(
        "create_embedding", "Make vectors of texts.", "Embeddings", _json_content("EmbeddingRequest"), made
    )


def _speech_operation() -> dict[str, Any]:
    sound = {mime: {"schema": _FILE} for mime in sorted(MIME.values())}
    said = "The sound, while it is being made; with `stream_format` sse, events with pieces of it."
    return _post_operation(
        "create_speech",
        "Speak a text as it is.",
        "Audio",
        _json_content("SpeechRequest"),
        {"description": said, "content": {**sound, **_event_content("SpeechDelta", "SpeechDone")}},
    )


def _transcription_operation() -> dict[str, Any]:
    either = {
        "application/json": {"schema": {"anyOf": [_schema_ref("Transcription"), _schema_ref("VerboseTranscription")]}}
    }
    text = {"text/plain": {"schema": {"type": "string"}}}
    return _post_operation(
        "create_transcription",
        "Write what is said in a sound.",
        "Audio",
        _form_content("TranscriptionForm"),
        {
            "description": "The text; with `stream`, server-sent events with pieces of it.",
            "content": {**either, **text, **_event_content("TranscriptDelta", "TranscriptDone")},
        },
    )


def _model_paths() -> dict[str, Any]:
    listed = {"description": "Models of the plan and of apps.", "content": _json_content("ModelList")}
    about = {"description": "About the model.", "content": _json_content("ModelObject")}
    gone = {"404": _failure_response("There is no such model.")}
    return {
        models.PATH: {"get": _operation("list_models", "Models that this gateway serves.", "Models", {"200": listed})},
        models.MODEL: {
            "parameters": [_id_parameter("model")],
            "get": _operation("show_model", "One model.", "Models", {"200": about, **gone}),
        },
    }


def _file_paths() -> dict[str, Any]:
    bytes_ = {"description": "The file.", "content": {"application/octet-stream": {"schema": _FILE}}}
    gone = {"404": _failure_response("The file was not found, or has expired.")}
    about = {"description": "About the file.", "content": _json_content("FileObject")}
    removed = {"description": "It is gone.", "content": _json_content("FileDeleted")}
    page = {"description": "Your files.", "content": _json_content("FileList")}
    wrong = {"400": _failure_response("The request cannot be obeyed; `param` names the place.")}
    made = _post_operation("upload_file", "Upload a file.", "Files", _form_content("FileForm"), about)
    listed = _operation("list_files", "List your files.", "Files", {"200": page, **wrong})
    return {
        files.FILES: {"post": made, "get": {**listed, "parameters": _query_parameters(files.FileQuery)}},
        files.FILE: {
            "parameters": [_id_parameter("file_id")],
            "get": _operation("show_file", "About a file.", "Files", {"200": about, **gone}),
            "delete": _operation("remove_file", "Remove a file.", "Files", {"200": removed, **gone}),
        },
        files.CONTENT: {
            "parameters": [_id_parameter("file_id")],
            "get": _operation("fetch_file", "The file itself.", "Files", {"200": bytes_, **gone}),
        },
    }


def _video_paths() -> dict[str, Any]:
    gone = {"404": _failure_response("The video was not found, or has expired.")}
    job = {"description": "The video, and how far it is.", "content": _json_content("Video")}
    page = {"description": "Videos in the order in which they were asked for.", "content": _json_content("VideoList")}
    removed = {
        "description": "It is gone; if it was being made, that has stopped.",
        "content": _json_content("VideoDeleted"),
    }
    file = {"video/mp4": {"schema": _FILE}, "image/webp": {"schema": _FILE}}
    fetched = {"description": "The file; with a `Range` header, 206 and that part of it.", "content": file}
    early = {"400": _failure_response("The video is not completed."), **gone}
    body = {**_json_content("VideoRequest"), **_form_content("VideoRequest")}
    made = _post_operation("create_video", "Have a video made of a text; the answer is its job.", "Videos", body, job)
    wrong = {"400": _failure_response("The query cannot be used; `param` names the place.")}
    listed = _operation("list_videos", "List videos.", "Videos", {"200": page, **wrong, **gone})
    return {
        videos.PATH: {"post": made, "get": {**listed, "parameters": _query_parameters(videos.ListQuery)}},
        videos.VIDEO: {
            "parameters": [_id_parameter("video_id")],
            "get": _operation("show_video", "How far a video is.", "Videos", {"200": job, **gone}),
            "delete": _operation("remove_video", "Remove a video, made or not.", "Videos", {"200": removed, **gone}),
        },
        videos.CONTENT: {
            "parameters": [_id_parameter("video_id"), *_query_parameters(videos.ContentQuery)],
            "get": _operation("fetch_video", "The video itself.", "Videos", {"200": fetched, **early}),
        },
    }


def _id_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(kind: type) -> list[dict[str, Any]]:
    """The parameters that the fields of ``kind`` are."""
    fields = msgspec.json.schema_components([kind])[1][kind.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in fields.items()]


def _post_operation(id: str, summary: str, tag: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    responses = {"200": answer, **{status: _failure_response(text) for status, text in _FAILURES.items()}}
    return {**_operation(id, summary, tag, responses), "requestBody": {"required": True, "content": body}}


def _operation(id: str, summary: str, tag: str, responses: dict[str, Any]) -> dict[str, Any]:
    return {"operationId": id, "summary": summary, "tags": [tag], "responses": responses}


def _failure_response(description: str) -> dict[str, Any]:
    return {"description": description, "content": _json_content("ErrorBody")}


def _json_content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _schema_ref(name)}}


def _form_content(name: str) -> dict[str, Any]:
    return {"multipart/form-data": {"schema": _schema_ref(name)}}


def _event_content(*names: str) -> dict[str, Any]:
    schemas = [_schema_ref(name) for name in names]
    return {"text/event-stream": {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}}


def _schema_ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}


def _with_files(schema: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A form's schema with the files that go with its fields, all of them required."""
    return {
        **schema,
        "properties": {**parts, **schema["properties"]},
        "required": [*parts, *schema.get("required", ())],
    }
