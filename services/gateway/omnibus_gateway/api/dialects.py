"""Translation of chats in other dialects, with defaults of their models."""

from omnibus.errors import BadRequest, NotFound
from omnibus_gateway.openai.vllm_omni import HEADER, NAME, OmniRequest, translate_request
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.images import ImageTasks


class DialectTranslator:
    """Looks up the output modalities of models in the plan."""

    def __init__(self, router: Router, chat: Chat, painters: ImageTasks) -> None:
        self._router = router
        self._chat = chat
        self._painters = painters

    def __call__(self, dialect: str, body: bytes) -> OmniRequest:
        """Read a request in the dialect ``dialect``. Raises ``BadRequest`` and ``NotFound``."""
        if dialect.strip().lower() != NAME:
            raise BadRequest(f"The dialect must be {NAME}. Omit the header for OpenAI's.", param=HEADER)
        return translate_request(body, self._model_outputs)

    def _model_outputs(self, name: str) -> tuple[str, list[str]]:
        model = name or self._only_model()
        try:
            speaks = self._router.get_model(self._router.base_model(model)).has_talker
        except NotFound:  # an app's model, or unknown
            return model, ["text"]
        return model, ["image"] if self._makes_only_images(model) else ["text", "audio"] if speaks else ["text"]

    def _only_model(self) -> str:
        plan = self._router.plan
        names = [name for name, model in plan.models.items() if not model.apps] if plan is not None else []
        if len(names) != 1:
            raise BadRequest("Missing required parameter: 'model'. There is more than one, or none yet.", param="model")
        return names[0]

    def _makes_only_images(self, model: str) -> bool:
        """Return True if ``model`` generates images and does not chat."""
        try:
            self._chat.get_task(model)
        except BadRequest:
            try:
                self._painters.get_task(model)
            except BadRequest:
                return False
            return True
        return False
